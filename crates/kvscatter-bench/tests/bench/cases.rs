//! Valid and invalid cases.

use kvscatter::{ElementType, Mode};
use kvscatter_bench::{BenchError, CacheDims, Case, Form, Pages, Scene, Temperature, UpdateLayout};

use crate::support::{case, parse};

#[test]
fn everything_that_can_be_said() {
    let case = case(
        r#"
        name = "all of it"
        shape = [3, 2, 16, 8]
        axis = 2
        rows = 4
        type = "bf16"
        mode = "circular"
        starts = [13, 0, 15]
        form = "in-place"
        temperature = "unflushed"
        layers = 2
        pages = "4k"
        update = "bshd"
        threads = 1
        "#,
    );
    let parameters = case.parameters();
    assert_eq!((parameters.element, parameters.mode), (ElementType::BFloat16, Mode::Circular));
    assert_eq!((parameters.temperature, parameters.pages), (Temperature::Unflushed, Pages::Small));
    assert_eq!((parameters.update, parameters.form), (UpdateLayout::Bshd, Form::InPlace));
    assert_eq!(case.dims(), CacheDims { batch: 3, outer: 2, capacity: 16, inner: 8, bits: 16 });
    assert_eq!(case.update_shape(), [3, 2, 4, 8]);
    assert_eq!(case.update_strides(), Some([64, 8, 16, 1]));
    assert_eq!((case.cache_bytes(), case.update_bytes(), case.moved_bytes()), (1536, 384, 768));
    assert_eq!(case.starts_at(0), [13, 0, 15]);
    assert_eq!(case.starts_at(2), [15, 2, 1]);
    let again: Case = toml::from_str(&toml::to_string(&case).unwrap()).unwrap();
    assert_eq!(again, case);
}

#[test]
fn defaults_are_a_hot_decode_in_float16() {
    let case = case("shape = [2, 8, 4096, 128]\nrows = 1");
    assert_eq!(case.starts_at(0), [13, 990]);
    assert_eq!(case.starts_at(4095), [12, 989]);
    assert_eq!((case.axis(), case.dims().bits, case.moved_bytes()), (2, 16, 4096));
    assert_eq!(case.parameters().temperature, Temperature::Hot);
}

#[test]
fn every_rule_keeps_every_start_in_range() {
    for (starts, mode) in
        [("ragged", "linear"), ("equal", "linear"), ("ragged", "circular"), ("wrap", "circular")]
    {
        for rows in [2, 3, 7, 64] {
            let case = case(&format!(
                "shape = [99, 64, 1]\naxis = 1\nrows = {rows}\nmode = \"{mode}\"\nstarts = \"{starts}\""
            ));
            for step in [0, 1, 63, 64, 1_000_003] {
                for start in case.starts_at(step) {
                    let end = start as usize + rows;
                    assert!((0..64).contains(&start), "{starts} {mode} {rows}: {start}");
                    assert!(mode == "circular" || end <= 64, "{starts} {rows}: {start}");
                    assert!(starts != "wrap" || step != 0 || end > 64, "{rows}: {start}");
                }
            }
        }
    }
}

#[test]
fn nonsense_is_refused_in_one_line() {
    let lines = [
        ("shape = [4]", "past_cache has 1 dimension, must have at least 2"),
        ("axis = 0", "axis = 0 is the batch dimension"),
        ("axis = 4", "axis = 4"),
        ("shape = [2, 0, 8, 4]", "shape [2, 0, 8, 4] has a dimension of 0, must be at least 1"),
        ("shape = [9223372036854775807, 2, 8, 4]", "takes more than the address space"),
        ("type = \"string\"", "type string: elements without a width cannot be timed"),
        ("type = \"float9\"", "type 'float9': must be an element type, such as float16"),
        ("mode = \"ring\"", "mode 'ring': must be linear or circular"),
        ("rows = 0", "rows = 0: must be 1 to 8, the cache's capacity"),
        ("rows = 9", "rows = 9: must be 1 to 8, the cache's capacity"),
        ("starts = [1]", "starts: 1 of them, the batch is 2"),
        ("starts = [0, 8]", "starts[1] = 8: must be 0 to 7"),
        (
            "starts = \"even\"",
            "starts 'even': must be ragged, equal, wrap or one slot per sample, such as 3,0",
        ),
        ("starts = \"wrap\"", "starts wrap: mode is linear, must be circular"),
        ("starts = \"wrap\"\nmode = \"circular\"", "starts wrap: rows = 1, must be at least 2"),
        ("layers = 0", "layers = 0: must be at least 1"),
        ("layers = 2", "layers = 2: a hot case has 1"),
        ("temperature = \"flushed\"\nform = \"functional\"", "form functional: only hot cases have it"),
        (
            "update = \"bshd\"\naxis = 1",
            "update bshd: rank 4, axis 1, 16-bit elements, must be rank 4, axis 2",
        ),
        ("update = \"bshd\"\ntype = \"int4\"", "update bshd: rank 4, axis 2, 4-bit elements"),
        ("threads = 0", "threads = 0: must be 1 to "),
        ("threads = 1000000", "threads = 1000000: must be 1 to "),
        ("sede = 1", "unknown field `sede`"),
    ];
    for (line, says) in lines {
        let base = ["shape = [2, 3, 8, 4]", "rows = 1"];
        let key = |line: &str| line.split(" =").next().unwrap().to_owned();
        let kept = base.into_iter().filter(|kept| !line.lines().any(|line| key(line) == key(kept)));
        let text = kept.chain([line]).collect::<Vec<_>>().join("\n");
        let error = parse(&text).expect_err(&text);
        assert!(error.contains(says), "{line}: {error}");
        assert!(!error.contains('\n') && !error.contains("untagged"), "{line}: {error}");
    }
}

#[test]
fn what_does_not_fit_into_memory_is_refused_before_it_is_allocated() {
    let case = case("name = \"huge\"\nshape = [1024, 64, 1048576, 128]\nrows = 1");
    let error = Scene::new(&case).expect_err("16 TiB");
    assert!(matches!(error, BenchError::Memory { needed, available, .. } if needed > available), "{error}");
    assert!(error.to_string().starts_with("case huge: needs "), "{error}");
}
