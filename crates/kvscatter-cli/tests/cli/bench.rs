//! Tests `kvscatter bench` with small shapes and almost no time.

use serde_json::Value;

use crate::support::Folder;

/// A short run, on pages that every system has.
const QUICK: &str = "--seconds 0 --pages 4k";

#[track_caller]
fn json(line: &str) -> Value {
    let text = Folder::new().run(&format!("bench {line} {QUICK} --json")).passed();
    serde_json::from_str(&text).expect("one JSON document")
}

#[test]
fn a_table_and_a_histogram() {
    let folder = Folder::new();
    let text = folder.run(&format!("bench --shape 2,2,16,8 {QUICK} --svg h.svg")).passed();
    let debug = text.starts_with("THIS IS A DEBUG BUILD: ITS TIMES MEAN NOTHING.");
    assert_eq!(debug, cfg!(debug_assertions), "{text}");
    for line in [
        "float16 cache [2, 2, 16, 8], 1 row at ragged starts, linear, hot, 4 KiB pages",
        "checked against the specification's pseudocode",
        "engine     time per call",
        "A/A spread: the hand loop over its second turn, medians of blocks of rounds: ",
        "run to run: the hand loop takes ",
    ] {
        assert!(text.lines().any(|printed| printed.starts_with(line)), "{line}: {text}");
    }
    // Each engine has a line in the table and one in the histogram.
    for engine in ["memcpy  ", "hand loop  ", "kvscatter  "] {
        assert_eq!(text.lines().filter(|line| line.starts_with(engine)).count(), 2, "{engine}: {text}");
    }
    let svg = String::from_utf8(folder.read("h.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("float16 cache [2, 2, 16, 8]"), "{svg}");
    let svg = folder.run(&format!("bench --shape 2,2,16,8 {QUICK} --svg -")).passed();
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{svg}");
}

#[test]
fn json_says_all_of_it() {
    let report = json("--shape 2,2,16,8 --rows 3 --type bf16 --mode circular --starts wrap");
    assert_eq!(report["debug_build"], cfg!(debug_assertions));
    assert_eq!(report["checked_by"], "oracle");
    assert_eq!(report["bytes_per_call"], 2 * 2 * 3 * 8 * 2);
    assert_eq!(report["case"]["type"], "bfloat16");
    assert_eq!(report["noise"]["engine"], "hand loop");
    let [lowest, highest] = ["lowest", "highest"].map(|end| report["noise"]["spread"][end].as_f64().unwrap());
    assert!(0.0 < lowest && lowest <= 1.0 && highest >= 1.0, "{lowest} to {highest}");
    let variation = &report["variation"];
    assert_eq!((&variation["engine"], &variation["processes"]), (&"hand loop".into(), &4.into()));
    let [lowest, highest] = ["lowest", "highest"].map(|end| variation[end].as_f64().unwrap());
    assert!(0.0 < lowest && lowest <= highest, "{variation}");
    assert_eq!(variation["ratios"].as_array().unwrap().len(), 3, "{variation}");
    assert!(variation["ratios"][0]["engine"].is_string(), "{variation}");
    assert!(["portable", "sse2", "avx2", "avx512"].contains(&report["isa"].as_str().unwrap()));
    assert!(report["machine"]["cores"].as_u64().unwrap() >= 1);
    let engines = report["engines"].as_array().unwrap();
    let names: Vec<_> = engines.iter().map(|engine| engine["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["memcpy", "hand loop", "kvscatter", "kvscatter, unwrapped"]);
    for engine in engines {
        assert_eq!(engine["outcome"], "measured");
        let time = &engine["detail"]["write"];
        let [p10, median, p90] = ["p10", "median", "p90"].map(|part| time[part].as_f64().unwrap());
        assert!(0.0 < p10 && p10 <= median && median <= p90, "{time}");
        assert!(engine["gigabytes_per_second"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(engines[0]["over_memcpy"]["median"], 1.0);
    assert!(engines[2]["over_hand_loop"]["median"].as_f64().unwrap() > 0.0);
}

#[test]
fn cold_runs_write_pairs_and_read_them_back() {
    let report = json("--shape 2,2,16,8 --cold=unflushed --update bshd");
    assert_eq!(report["case"]["layers"], 16);
    assert_eq!(report["bytes_per_call"], 2 * 2 * 2 * 8 * 2);
    let times = &report["engines"][2]["detail"];
    assert!(times["write_and_read"]["median"].as_f64() > times["write"]["median"].as_f64());
    assert_eq!(report["variation"]["processes"], 1);
    let text = Folder::new().run(&format!("bench --shape 2,2,16,8 --cold=unflushed {QUICK}")).passed();
    assert!(
        text.contains("keys and values of 16 layers, unflushed") && text.contains("with reading"),
        "{text}"
    );
}

#[test]
fn what_an_engine_cannot_do_is_said() {
    let text = Folder::new().run(&format!("bench --shape 2,2,16,7 --type int4 {QUICK}")).passed();
    assert!(text.contains("hand loop: not available here: memcpy cannot move half bytes"), "{text}");
    assert!(text.contains("A/A spread: the memcpy over its second turn"), "{text}");
}

#[test]
fn the_functional_form_moves_the_cache() {
    let report = json("--shape 2,2,16,8 --form functional --axis=-1 --starts 7,0 --type f32");
    assert_eq!(report["bytes_per_call"], 2 * 2 * 16 * 8 * 4);
    assert_eq!(report["case"]["starts"], serde_json::json!([7, 0]));
}

#[test]
fn nonsense_is_refused_in_one_line() {
    let folder = Folder::new();
    let lines = [
        "--shape 8,8",
        "--shape 8,8,x",
        "--shape 2,2,16,8 --rows 17",
        "--shape 2,2,16,8 --axis 0",
        "--shape 2,2,16,8 --type string",
        "--shape 2,2,16,8 --type f17",
        "--shape 2,2,16,8 --starts 1",
        "--shape 2,2,16,8 --starts sideways",
        "--shape 2,2,16,8 --starts wrap",
        "--shape 2,2,16,8 --form flat",
        "--shape 2,2,16,8 --cold=warm",
        "--shape 2,2,16,8 --layers 3",
        "--shape 2,2,16,8 --cold=unflushed --layers 3 --pages 4k",
        "--shape 2,2,16,8 --cold=flushed-rows --layers 7 --pages 4k",
        "--shape 2,2,16,8 --cold --form functional",
        "--shape 2,2,16,8 --pages 1g",
        "--shape 2,2,16,8 --seconds -1",
        "--shape 2,2,16,8 --seconds 3601",
        "--shape 2,2,16,8 --seconds nan",
    ];
    let answers = lines.map(|line| {
        format!("$ kvscatter bench {line}\n{}\n", folder.run(&format!("bench {line}")).refused())
    });
    insta::assert_snapshot!(answers.concat());
    let error = folder.run("bench --shape 2,2,16,8 --threads 0").refused();
    assert!(error.starts_with("error: threads = 0: must be 1 to "), "{error}");
    let error = folder.run("bench --shape 1024,64,1048576,128").refused();
    assert!(error.starts_with("error: needs ") && error.ends_with(" MiB are available"), "{error}");
}
