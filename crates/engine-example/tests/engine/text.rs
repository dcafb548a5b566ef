//! The bundled tokenizer against recorded texts, and streams that never break a character.

use crate::support::{data_path, read_json};
use engine_example::text::{Message, Text};
use proptest::prelude::*;
use serde::Deserialize;
use std::path::Path;
use std::sync::LazyLock;

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    decoded: String,
}

static BUNDLED: LazyLock<Text> =
    LazyLock::new(|| Text::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("model")).unwrap());

fn cases() -> Vec<Case> {
    read_json(&data_path("data/tokenizer_golden.json"))
}

#[test]
fn recorded_texts_round_trip() {
    assert!(cases().len() >= 15);
    for case in cases() {
        assert_eq!(BUNDLED.encode(&case.text).unwrap(), case.ids, "{:?}", case.text);
        assert_eq!(BUNDLED.decode(&case.ids, false).unwrap(), case.decoded, "{:?}", case.text);
    }
}

#[test]
fn stop_ids_and_template_come_with_the_model() {
    assert_eq!(BUNDLED.stop_ids(), [4093, 4095]);
    assert_eq!(BUNDLED.vocab_size(), 4096);
    let messages = [Message::new("user", "What is the capital of Peru?")];
    let prompt = BUNDLED.chat().unwrap().render(&messages, true).unwrap();
    let wanted =
        "<|im_start|>user\nWhat is the capital of Peru?<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(prompt, wanted);
}

#[test]
fn settings_come_from_the_files_that_are_there() {
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("model");
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let missing = Text::open(dir.path()).unwrap_err();
    assert!(missing.kind() == "io" && missing.to_string().contains("tokenizer.json"), "{missing}");
    std::fs::copy(bundled.join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    let bare = Text::open(dir.path()).unwrap();
    assert!(bare.stop_ids().is_empty() && bare.chat().is_none());

    write("config.json", r#"{"eos_token_id": 7}"#);
    write("generation_config.json", r#"{"eos_token_id": null}"#);
    assert_eq!(Text::open(dir.path()).unwrap().stop_ids(), [7]);
    write("generation_config.json", r#"{"eos_token_id": [8, 9]}"#);
    assert_eq!(Text::open(dir.path()).unwrap().stop_ids(), [8, 9]);
    write("generation_config.json", r#"{"eos_token_id": "x"}"#);
    assert_eq!(Text::open(dir.path()).unwrap_err().kind(), "config-inconsistent");
    write("generation_config.json", "{}");

    let config = r#"{"eos_token": {"content": "<e>"}, "chat_template": [
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "listed {{ eos_token }}"}]}"#;
    write("tokenizer_config.json", config);
    let render = || Text::open(dir.path()).unwrap().chat().unwrap().render(&[], false).unwrap();
    assert_eq!(render(), "listed <e>");
    write("chat_template.jinja", "own file {{ eos_token }}");
    assert_eq!(render(), "own file <e>");
    write("tokenizer.json", "{");
    assert_eq!(Text::open(dir.path()).unwrap_err().kind(), "tokenizer-invalid");
}

#[test]
fn an_unknown_id_is_named() {
    let error = BUNDLED.decode(&[5, 4096], true).unwrap_err();
    assert_eq!(error.kind(), "token-out-of-range");
    assert!(error.to_string().contains("4096 at position 1"), "{error}");
    let mut stream = BUNDLED.stream();
    assert_eq!(stream.push(70_000).unwrap_err().kind(), "token-out-of-range");
    assert_eq!(stream.push(2244).unwrap(), BUNDLED.decode(&[2244], true).unwrap());
}

#[test]
fn a_character_split_over_tokens_comes_out_whole() {
    let ids = BUNDLED.encode("😀é").unwrap();
    assert!(ids.len() >= 5, "the bundled vocabulary has these as bytes: {ids:?}");
    let mut stream = BUNDLED.stream();
    let pieces: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    assert_eq!(pieces, ["", "", "", "😀", "", "é"]);
    assert_eq!(stream.finish().unwrap(), "");
}

#[test]
fn an_unfinished_character_shows_at_the_end_only() {
    let ids = BUNDLED.encode("a😀").unwrap();
    let mut stream = BUNDLED.stream();
    let shown: String = ids[..ids.len() - 1].iter().map(|&id| stream.push(id).unwrap()).collect();
    assert_eq!(shown, "a");
    let rest = stream.finish().unwrap();
    assert!(!rest.is_empty() && rest.chars().all(|c| c == '\u{FFFD}'), "{rest:?}");
}

#[test]
fn bytes_that_are_no_character_do_not_wait_forever() {
    let lead = BUNDLED.encode("😀").unwrap()[0];
    let mut stream = BUNDLED.stream();
    let shown: String = (0..100).map(|_| stream.push(lead).unwrap()).collect();
    assert!(shown.chars().count() > 80 && shown.chars().all(|c| c == '\u{FFFD}'));
}

proptest! {
    #[test]
    fn pieces_add_up_to_the_text(text in "[ -~é漢😀\n]{0,40}") {
        let ids = BUNDLED.encode(&text).unwrap();
        let mut stream = BUNDLED.stream();
        let mut streamed = String::new();
        for &id in &ids {
            streamed += &stream.push(id).unwrap();
        }
        streamed += &stream.finish().unwrap();
        prop_assert_eq!(streamed, BUNDLED.decode(&ids, true).unwrap());
    }

    #[test]
    fn random_tokens_lose_nothing(ids in prop::collection::vec(0_u32..4096, 0..40)) {
        let mut stream = BUNDLED.stream();
        let mut streamed = String::new();
        for &id in &ids {
            streamed += &stream.push(id).unwrap();
        }
        streamed += &stream.finish().unwrap();
        let plain = |text: &str| text.replace('\u{FFFD}', "");
        prop_assert_eq!(plain(&streamed), plain(&BUNDLED.decode(&ids, true).unwrap()));
    }
}

#[test]
fn ranks_and_special_slots_of_kimi_are_read_as_they_are() {
    let dir = data_path("cases/O17");
    let text = Text::open(&dir).unwrap();
    let expected: serde_json::Value = read_json(&dir.join("expected.json"));
    let ids = |row: &serde_json::Value| -> Vec<u32> {
        serde_json::from_value(row["ids"].clone()).unwrap()
    };
    for row in expected["encode"].as_array().unwrap() {
        let sample = row["text"].as_str().unwrap();
        assert_eq!(text.encode(sample).unwrap(), ids(row), "{sample:?}");
    }
    for row in expected["decode"].as_array().unwrap() {
        assert_eq!(text.decode(&ids(row), false).unwrap(), row["text"].as_str().unwrap());
    }
    for row in expected["error"].as_array().unwrap() {
        assert_eq!(text.decode(&ids(row), false).unwrap_err().kind(), row["kind"]);
    }
    assert_eq!(text.vocab_size() as u64, expected["vocab"].as_u64().unwrap());
}

#[test]
fn broken_ranks_name_the_line() {
    let dir = tempfile::tempdir().unwrap();
    for (ranks, word) in [
        ("", "no ranks"),
        ("IQ== 0\nIg== 2\n", "line 2"),
        ("IQ== 0\n?? 1\n", "line 2"),
        ("IQ==\n", "line 1"),
        (" 0\n", "line 1"),
    ] {
        std::fs::write(dir.path().join("tiktoken.model"), ranks).unwrap();
        let error = Text::open(dir.path()).unwrap_err();
        assert_eq!(error.kind(), "tokenizer-invalid", "{ranks:?}");
        assert!(error.to_string().contains(word), "{error}");
    }
    std::fs::write(dir.path().join("tiktoken.model"), "IQ== 0\n").unwrap();
    let config = r#"{"added_tokens_decoder":{"900":{"content":"<far>"}}}"#;
    std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
    let error = Text::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("900") && error.to_string().contains("<far>"), "{error}");
}
