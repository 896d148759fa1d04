use alloc::string::ToString;
use alloc::vec::Vec;
use core::ops::Range;

use super::*;
use crate::Argument;
use crate::spec::ascend::{KvCacheOperation, KvCacheOperationCall};
use crate::spec::onnx::TensorScatter;
use crate::spec::paged::PagedWrite;
use crate::visibility::Visibility;
use crate::{ElementType, Mode, OutOfRange};

fn written(sample: usize, position: i64, first: Range<usize>, wrapped: Range<usize>) -> Lane {
    let outcome = SampleOutcome::Written { first, wrapped };
    Lane { sample, position: Some(position), outcome, visible: [0..0, 0..0] }
}

fn skipped(sample: usize, position: i64) -> Lane {
    Lane { sample, position: Some(position), outcome: SampleOutcome::Skipped, visible: [0..0, 0..0] }
}

fn untouched(sample: usize) -> Lane {
    let outcome = SampleOutcome::Written { first: 0..0, wrapped: 0..0 };
    Lane { sample, position: None, outcome, visible: [0..0, 0..0] }
}

fn picture(capacity: usize, lanes: Vec<Lane>) -> Picture {
    let skipped = lanes.iter().filter(|lane| lane.outcome == SampleOutcome::Skipped).count();
    Picture { capacity, samples: lanes.len(), skipped, positions: Argument::WriteIndices, lanes }
}

/// Returns a picture with every mark, of a cache that is small enough to count its slots.
fn small() -> Picture {
    picture(16, vec![written(0, 3, 3..7, 0..0), written(1, 14, 14..16, 0..2), skipped(2, 99), untouched(3)])
}

/// Returns a picture with runs of a single slot among thousands, and with samples without a lane.
fn large() -> Picture {
    let lanes = vec![
        written(0, 2047, 2047..2048, 0..0),
        written(1, -1, 4095..4096, 0..511),
        written(2, 4095, 4095..4096, 0..0),
        written(3, 1, 1..4096, 0..1),
        written(4, 4095, 4095..4096, 0..4095),
        skipped(5, i64::MIN),
    ];
    Picture { samples: 256, ..picture(4096, lanes) }
}

/// Returns a picture of a ring with what the last token of each sample sees.
fn with_visible() -> Picture {
    let lanes = vec![
        written(0, 3, 3..7, 0..0),
        written(1, 30, 14..16, 0..2),
        written(2, 37, 5..6, 0..0),
        written(3, -1, 15..16, 0..0),
        skipped(4, 99),
        untouched(5),
    ];
    picture(16, lanes).visible(Visibility::new(Mode::Circular, 16).causal().window(9))
}

/// Returns pictures of one lane each. They show writes of several lengths near both ends of a ring.
fn every_write(capacity: usize) -> impl Iterator<Item = Picture> {
    let starts = (0..capacity).filter(move |start| *start < 40 || *start + 40 > capacity);
    let writes =
        starts.flat_map(move |start| [1, 2, capacity / 2, capacity].map(|rows| (start, rows.min(capacity))));
    writes.map(move |(start, rows)| {
        let end = (start + rows).min(capacity);
        picture(capacity, vec![written(0, start as i64, start..end, 0..start + rows - end)])
    })
}

#[test]
fn text() {
    insta::assert_snapshot!(small().text());
}

#[test]
fn text_in_ascii() {
    insta::assert_snapshot!(small().text().width(10).ascii(true));
}

#[test]
fn text_of_a_large_cache() {
    insta::assert_snapshot!(large().text().width(64));
}

#[test]
fn text_with_visible_slots() {
    insta::assert_snapshot!(with_visible().text());
}

#[test]
fn svg_with_visible_slots() {
    insta::assert_snapshot!(with_visible().svg());
}

#[test]
fn svg() {
    insta::assert_snapshot!(small().svg());
}

#[test]
fn svg_of_a_large_cache() {
    insta::assert_snapshot!(large().svg());
}

#[test]
fn no_run_is_ever_rounded_away() {
    for picture in [1, 2, 3, 7, 80, 81, 1000, 4096].into_iter().flat_map(every_write) {
        for width in [0, 2, 16, 80] {
            let text = picture.text().width(width).to_string();
            for (mark, run) in picture.lanes[0].runs() {
                let lane = text.lines().nth(2).unwrap();
                assert!(lane.contains(mark.glyph(false)), "{width}: {run:?} is missing in\n{text}");
            }
        }
    }
}

/// Returns the pattern and the pixels of every bar, in the order of drawing.
fn bars(svg: &str) -> Vec<(String, Range<usize>)> {
    let bars = svg.lines().filter_map(|line| line.strip_prefix("    <rect x='"));
    bars.filter_map(|bar| {
        let (x, rest) = bar.split_once("' width='")?;
        let (width, rest) = rest.split_once('\'')?;
        let (_, pattern) = rest.split_once("url(#")?;
        let x: usize = x.parse().ok()?;
        Some((pattern.split_once(')')?.0.to_owned(), x..x + width.parse::<usize>().ok()?))
    })
    .collect()
}

/// Returns the text and the pixels of every note.
fn notes(svg: &str) -> Vec<(String, Range<usize>)> {
    let notes = svg.lines().filter_map(|line| line.strip_prefix("    <text x='"));
    notes
        .filter_map(|note| {
            let (x, rest) = note.split_once("' y='38'>")?;
            let text = rest.strip_suffix("</text>")?;
            let x: usize = x.parse().ok()?;
            Some((text.to_owned(), x..x + 8 * text.len()))
        })
        .collect()
}

#[test]
fn bars_are_seen_and_notes_do_not_touch() {
    for picture in [1, 2, 3, 7, 80, 81, 1000, 4096, 1_000_000].into_iter().flat_map(every_write) {
        let svg = picture.svg().to_string();
        let bars = bars(&svg);
        let (ground, runs) = bars.split_first().unwrap();
        assert_eq!(ground.0, "old");
        assert_eq!(runs.len(), picture.lanes[0].runs().count(), "{svg}");
        for (position, (_, bar)) in runs.iter().enumerate() {
            let covered = runs[position + 1..].iter().map(|(_, above)| above);
            let hidden: usize =
                covered.map(|above| bar.end.min(above.end).saturating_sub(bar.start.max(above.start))).sum();
            assert!(bar.len() >= hidden + 3 && bar.end <= ground.1.end, "{runs:?}");
        }
        let notes = notes(&svg);
        assert_eq!(notes.len(), runs.len());
        for pair in notes.windows(2) {
            assert!(pair[0].1.end < pair[1].1.start, "{notes:?}");
        }
        assert!(notes.iter().all(|(_, note)| note.end <= ground.1.end), "{notes:?}");
    }
}

#[test]
fn a_lane_beyond_the_cache_is_drawn_within_it() {
    let wild = |capacity| {
        let lanes = vec![
            written(usize::MAX, i64::MAX, 0..usize::MAX, usize::MAX - 1..usize::MAX),
            written(0, 0, Range { start: 5, end: 2 }, 7..7),
            Lane { visible: [2..usize::MAX, 0..usize::MAX], ..written(1, 0, 3..9, 3..9) },
        ];
        Picture { samples: 0, ..picture(capacity, lanes) }
    };
    for capacity in [0, 1, 4, usize::MAX] {
        for width in [0, 1, 80] {
            let text = wild(capacity).text().width(width).to_string();
            assert!(text.lines().all(|line| line.chars().count() < 240), "{text}");
        }
        let svg = wild(capacity).svg().to_string();
        let bars = bars(&svg);
        assert!(bars.iter().all(|(_, bar)| bar.end <= 800), "{bars:?}");
    }
}

#[test]
fn a_plan_becomes_lanes() -> Result<(), crate::Error> {
    let ring = TensorScatter::new().mode(Mode::Circular);
    let write = ring.prepare(ElementType::Float16, &[3, 2, 8, 4], &[3, 2, 3, 4])?;
    let lanes = vec![written(0, 1, 1..4, 0..0), written(1, -1, 7..8, 0..2), written(2, 13, 5..8, 0..0)];
    assert_eq!(Picture::new(&write.plan(&[1, -1, 13])?, 64), picture(8, lanes));
    Ok(())
}

/// Compares each glyph with the rule, for starts in a linear cache and in a ring that has wrapped.
#[test]
fn glyphs_of_old_slots_follow_the_rule() -> Result<(), crate::Error> {
    for (mode, starts) in [(Mode::Linear, 0..6), (Mode::Circular, 0..20)] {
        let scatter = TensorScatter::new().mode(mode);
        let write = scatter.prepare(ElementType::Float16, &[1, 2, 7, 4], &[1, 2, 2, 4])?;
        for (start, window) in starts.flat_map(|start| (1..9).map(move |window| (start, window))) {
            let starts = [start];
            let plan = write.plan(&starts)?;
            let rule = Visibility::new(mode, 7).causal().window(window);
            let text = Picture::new(&plan, 1).visible(rule).text().width(7).ascii(true).to_string();
            let lane = text.lines().nth(2).and_then(|lane| lane.get(23..30)).unwrap();
            for (slot, glyph) in lane.chars().enumerate().filter(|(_, glyph)| !"#=".contains(*glyph)) {
                let expected = if rule.sees(start + 2, start + 1, slot) { '-' } else { '.' };
                assert_eq!(glyph, expected, "{mode:?} {start} {window} {slot}\n{text}");
            }
        }
    }
    Ok(())
}

/// Ascend's position is the length after the write.
#[test]
fn positions_of_a_linear_cache_are_slots() -> Result<(), crate::Error> {
    let write = KvCacheOperation::new().prepare(ElementType::Float16, &[1, 1, 8, 4], &[2, 4])?;
    let call = KvCacheOperationCall::new(&[0], &[5], &[2]);
    let picture = Picture::new(&write.plan(call)?, 1).visible(Visibility::new(Mode::Linear, 8).causal());
    assert_eq!(picture.lanes[0].visible, [0..5, 0..0]);
    Ok(())
}

#[test]
fn skipped_and_hidden_samples_are_counted() -> Result<(), crate::Error> {
    let linear = TensorScatter::new().out_of_range(OutOfRange::SkipSample);
    let write = linear.prepare(ElementType::Float16, &[4, 2, 8, 4], &[4, 2, 3, 4])?;
    let plan = write.plan(&[6, 5, -1, i64::MAX])?;
    let lanes = vec![skipped(0, 6), written(1, 5, 5..8, 0..0)];
    assert_eq!(Picture::new(&plan, 2), Picture { samples: 4, skipped: 3, ..picture(8, lanes) });
    Ok(())
}

/// Returns a picture of a ring of 11 slots whose samples take steps of 4 tokens and of other lengths.
fn steps() -> Picture {
    let lanes = vec![
        written(0, 20, 9..11, 0..2),
        written(1, 18, 7..11, 0..1),
        written(2, 2, 2..5, 0..0),
        written(3, 12, 1..2, 0..0),
        written(4, -1, 10..11, 0..2),
        skipped(5, 99),
        untouched(6),
    ];
    Picture { samples: 9, ..picture(11, lanes) }
}

#[test]
fn text_of_a_ring() {
    insta::assert_snapshot!(RingPicture::new(&steps(), 8).text());
}

/// A ring that is wider than the text, and a window that is wider than the ring.
#[test]
fn text_of_a_wide_ring_and_of_one_that_is_too_small() {
    let wide = picture(4224, vec![written(0, 9000, 552..680, 0..0)]);
    let small = picture(4, vec![written(0, 3, 3..4, 0..2), written(1, 9, 1..2, 0..0)]);
    let (wide, small) = (RingPicture::new(&wide, 4096), RingPicture::new(&small, 6));
    insta::assert_snapshot!(alloc::format!("{}\n{}", wide.text().width(64).ascii(true), small.text()));
}

/// Compares the marks with a ring that is filled token by token.
#[test]
fn the_marks_of_a_ring_follow_its_writes() {
    for (capacity, window) in (1..8).flat_map(|capacity| (1..6).map(move |window| (capacity, window))) {
        for (start, rows) in (0..20).flat_map(|start| (1..=capacity).map(move |rows| (start, rows))) {
            let mut slots = alloc::vec![None; capacity];
            (0..start + rows).for_each(|position| slots[position % capacity] = Some(position));
            let end = start % capacity + rows;
            let lane = written(
                0,
                start as i64,
                start % capacity..end.min(capacity),
                0..end.max(capacity) - capacity,
            );
            let picture = RingPicture::new(&picture(capacity, vec![lane]), window);
            let RingOutcome::Step(step) = &picture.lanes[0].outcome else { panic!("{picture:?}") };
            let needed = |token: usize| (token + 1).saturating_sub(window)..token + 1;
            let is_there = |position: &usize| slots[position % capacity] == Some(*position);
            let exact = (start..start + rows).all(|token| needed(token).all(|position| is_there(&position)));
            assert_eq!(step.is_exact, exact, "{picture:?}");
            for token in start..start + rows {
                let seen = picture.seen(step, token);
                let (found, lost): (Vec<_>, Vec<_>) = needed(token).partition(is_there);
                let all = |range: Range<i64>| range.map(|position| position as usize).collect::<Vec<_>>();
                assert_eq!((all(seen.found), all(seen.lost)), (found, lost), "{picture:?} {token}");
            }
            let text = picture.text().width(capacity).ascii(true).to_string();
            let line =
                |label: &str| text.lines().find_map(|line| line.trim_start().strip_prefix(label)).unwrap();
            let drawn = |line: &str| line.trim_start().chars().take(capacity).collect::<String>();
            let found =
                needed(start).filter(is_there).map(|position| position % capacity).collect::<Vec<_>>();
            let lost =
                needed(start).filter(|position| !is_there(position)).map(|position| position % capacity);
            let lost: Vec<_> = lost.collect();
            let glyph = |slot: usize| match (lost.contains(&slot), found.contains(&slot)) {
                (true, _) => 'x',
                (_, true) if slot == start % capacity => '#',
                (_, true) => '-',
                _ => '.',
            };
            let expected: String = (0..capacity).map(glyph).collect();
            assert_eq!(drawn(line(&alloc::format!("token {start} sees"))), expected, "{text}");
            if exact && step.least_start > 0 {
                let least = step.least_start;
                assert!(
                    needed(least)
                        .take_while(|position| *position < least)
                        .all(|position| is_there(&position))
                );
                assert!(least == 1 || !needed(least - 1).all(|position| is_there(&position)), "{text}");
            }
        }
    }
}

/// A paged cache has a lane for each token, with the slots of its block.
#[test]
fn tokens_of_a_paged_cache_are_drawn() {
    let write = PagedWrite::new().skip_negative(true);
    let write = write.prepare(ElementType::Int8, &[3, 4, 1], &[3, 1]).unwrap();
    let picture = Picture::new(&write.plan(&[9, -1, 3]).unwrap(), 64);
    let lanes = [written(0, 9, 1..2, 0..0), skipped(1, -1), written(2, 3, 3..4, 0..0)];
    assert_eq!(picture.lanes, lanes);
    assert_eq!((picture.capacity, picture.samples, picture.skipped), (4, 3, 1));
    assert_eq!(picture.positions, Argument::SlotMapping);
}

#[test]
fn rings_of_any_numbers_are_drawn() {
    for (capacity, position) in [(0, 0), (1, 5), (7, i64::MAX), (usize::MAX, 0), (usize::MAX, i64::MAX)] {
        let lanes =
            vec![written(0, position, 0..usize::MAX, 0..usize::MAX), written(1, position, 0..1, 0..0)];
        for window in [0, 1, usize::MAX] {
            let text = RingPicture::new(&picture(capacity, lanes.clone()), window).text().to_string();
            assert!(text.lines().all(|line| line.chars().count() < 240), "{text}");
        }
    }
}
