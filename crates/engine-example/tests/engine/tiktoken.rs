//! The tokenizer of a Kimi checkpoint, which ships byte strings with ranks: a small vocabulary in
//! which a wrong splitter, a closed gap and a lost name are all seen.

use crate::support::{data_path, read_json};
use engine_example::text::Text;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    data_path("cases/O17")
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn refused(change: impl FnOnce(&Path)) -> String {
    let dir = tempfile::tempdir().unwrap();
    for name in ["tiktoken.model", "tokenizer_config.json"] {
        std::fs::copy(folder().join(name), dir.path().join(name)).unwrap();
    }
    change(dir.path());
    let error = Text::open(dir.path()).unwrap_err();
    assert_eq!(error.kind(), "tokenizer-invalid");
    error.to_string()
}

#[test]
fn every_recorded_text_and_id() {
    let (text, expected): (_, Value) =
        (Text::open(&folder()).unwrap(), read_json(&folder().join("expected.json")));
    assert_eq!(text.vocab_size() as u64, expected["vocab"].as_u64().unwrap());
    for case in expected["encode"].as_array().unwrap() {
        let wanted = case["text"].as_str().unwrap();
        assert_eq!(text.encode(wanted).unwrap(), ids(&case["ids"]), "{wanted}");
    }
    for case in expected["decode"].as_array().unwrap() {
        let wanted = case["text"].as_str().unwrap();
        assert_eq!(text.decode(&ids(&case["ids"]), false).unwrap(), wanted);
    }
    for case in expected["error"].as_array().unwrap() {
        let error = text.decode(&ids(&case["ids"]), false).unwrap_err();
        assert_eq!(error.kind(), case["kind"].as_str().unwrap());
    }
}

#[test]
fn every_byte_and_piece_comes_back() {
    let text = Text::open(&folder()).unwrap();
    for sample in ["", "Hell's hello 世界!\r\n\t 12345 don't", "ÄÖ\u{301} 界hell\n\n  x ", "🦀"]
    {
        let ids = text.encode(sample).unwrap();
        assert_eq!(text.decode(&ids, false).unwrap(), sample);
    }
}

#[test]
fn a_broken_list_is_named_with_its_line() {
    let list = std::fs::read_to_string(folder().join("tiktoken.model")).unwrap();
    let write = |dir: &Path, text: String| std::fs::write(dir.join("tiktoken.model"), text);
    let lines = || list.lines().map(str::to_owned).collect::<Vec<_>>();
    let gap = refused(|dir| {
        let mut lines = lines();
        lines.remove(7);
        write(dir, lines.join("\n")).unwrap();
    });
    assert!(gap.contains("line 8") && gap.contains("7 comes next"), "{gap}");
    let torn = refused(|dir| {
        let mut lines = lines();
        lines[20] = "!! 20".to_owned();
        write(dir, lines.join("\n")).unwrap();
    });
    assert!(torn.contains("line 21"), "{torn}");
    let twice = refused(|dir| {
        let mut lines = lines();
        lines[5] = lines[4].replace(" 4", " 5");
        write(dir, lines.join("\n")).unwrap();
    });
    assert!(twice.contains("twice"), "{twice}");
}
