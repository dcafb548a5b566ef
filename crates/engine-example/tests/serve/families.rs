//! Every command that decodes, on a checkpoint of every family.

use super::cli::json;
use serde_json::Value;

/// Shape, layers with experts, experts a token chooses.
const SHAPES: [(&str, usize, u64); 3] =
    [("tiny", 4, 4), ("tiny-deepseek-v3", 3, 4), ("tiny-kimi-k3", 9, 4)];

#[test]
fn generate_compare_capture_and_score_work_on_every_family() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (shape, layers, top_k) in SHAPES {
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let model = path(shape);
        let made = json(&["synth", "--shape", shape, "--out", &model, "--json"]);
        assert_eq!(made["experts"].as_u64().unwrap(), layers as u64 * 16, "{shape}");
        let sound = json(&["verify", &model, "--json"]);
        assert_eq!(sound["problems"], serde_json::json!([]), "{shape}: {sound}");

        let run = |more: &[&str]| -> Value {
            let generate = ["generate", "--model", &model, "--ids", "1,2,3,4", "--greedy"];
            json(&[&generate[..], &["--max-tokens", "40", "--json"], more].concat())
        };
        let plain = run(&[]);
        let piloted = run(&["--pilot", "lookahead,width=8"]);
        assert_eq!(plain["token_ids"], piloted["token_ids"], "{shape}");
        let pilot = &piloted["pilot"];
        assert_eq!(pilot["predictor"]["layers"].as_array().unwrap().len(), layers, "{shape}");

        let compare = ["compare", "--model", &model, "--ids", "1,2,3", "--rounds", "2"];
        let report = json(&[&compare[..], &["--max-tokens", "4", "--json"]].concat());
        assert_eq!(report["identical_outputs"], true, "{shape}");

        let out = path(&format!("{shape}.jsonl"));
        let capture = ["capture", "--model", &model, "--ids", "1,2,3", "--max-tokens", "5"];
        json(&[&capture[..], &["--greedy", "--out", &out, "--json"]].concat());
        let trace = router_trace::read_all(out.as_ref(), router_trace::Tail::Strict).unwrap();
        assert_eq!(trace.passes.len(), layers * 5, "{shape}");
        assert_eq!(u64::from(trace.header.shape.top_k), top_k, "{shape}");

        let text = path(&format!("{shape}.txt"));
        std::fs::write(&text, "A text of some bytes, each of them a token.").unwrap();
        let score = json(&["score", &text, "--model", &model, "--json"]);
        let loss = score["files"][0]["loss"].as_f64().unwrap();
        assert!((4.0..12.0).contains(&loss), "{shape}: {score}");
    }
}
