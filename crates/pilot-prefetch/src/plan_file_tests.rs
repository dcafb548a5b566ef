use super::*;
use proptest::prelude::*;

fn shape() -> ModelShape {
    ModelShape { moe_layers: vec![1, 2, 5], n_experts: 200, top_k: 4 }
}

fn header() -> PlanHeader {
    PlanHeader::new("a model", "a predictor", shape())
}

fn write(path: &Path, plans: &[Plan]) {
    let mut writer = PlanWriter::create(path, &header()).unwrap();
    plans.iter().for_each(|plan| writer.write(plan).unwrap());
    writer.finish().unwrap();
}

fn any_plan() -> impl Strategy<Value = Plan> {
    let hints = prop::collection::vec((0_u16..200, 0.0_f32..=1.0), 0..MAX_WIDTH + 20);
    (any::<u64>(), prop::sample::select(vec![1_u16, 2, 5]), hints).prop_map(
        |(step, layer, hints)| {
            let mut plan = Plan::new(step, layer);
            let hints = hints.into_iter().map(|(expert, probability)| Hint { expert, probability });
            plan.rank(hints, MAX_WIDTH);
            plan
        },
    )
}

fn error_of(text: &str) -> PlanFileError {
    match PlanReader::from_bytes(Path::new("p"), text.as_bytes().to_vec()) {
        Err(error) => error,
        Ok(reader) => reader.filter_map(Result::err).next().expect("an error"),
    }
}

fn with_line(line: &str) -> String {
    format!("{}\n{line}\n", serde_json::to_string(&header()).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_is_read(plans in prop::collection::vec(any_plan(), 0..20), gzip: bool) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(if gzip { "plans.jsonl.gz" } else { "plans.jsonl" });
        write(&path, &plans);
        prop_assert_eq!(std::fs::read(&path).unwrap().starts_with(&GZIP_MAGIC), gzip);
        let reader = PlanReader::open(&path).unwrap();
        prop_assert_eq!(reader.header(), &header());
        let found: Vec<Plan> = reader.map(Result::unwrap).collect();
        prop_assert_eq!(found, plans);
    }

    /// Any bytes: plans or an error, never a panic, and an end.
    #[test]
    fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..400), after_header: bool) {
        let mut all = if after_header { with_line("").into_bytes() } else { Vec::new() };
        all.extend(bytes);
        if let Ok(reader) = PlanReader::from_bytes(Path::new("p"), all.clone()) {
            prop_assert!(reader.count() <= all.len());
        }
    }

    /// A sound file with one byte changed or cut off.
    #[test]
    fn a_damaged_file_ends(
        plans in prop::collection::vec(any_plan(), 1..4), at: prop::sample::Index, new: u8, cut: bool,
        gzip: bool,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(if gzip { "p.gz" } else { "p" });
        write(&path, &plans);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] = new }
        if let Ok(reader) = PlanReader::from_bytes(&path, bytes) {
            prop_assert!(reader.count() <= plans.len() + 1);
        }
    }
}

#[test]
fn errors_name_the_line_and_the_value() {
    for (line, wanted) in [
        (r#"{"step":0,"layer":3,"experts":[1],"p":[1.0]}"#, "layer 3 is none"),
        (r#"{"step":0,"layer":1,"experts":[200],"p":[1.0]}"#, "expert 200 of 200"),
        (r#"{"step":0,"layer":1,"experts":[4,4],"p":[1.0,0.5]}"#, "expert 4 twice"),
        (r#"{"step":0,"layer":1,"experts":[4,5],"p":[1.0]}"#, "2 experts and 1"),
        (r#"{"step":0,"layer":1,"experts":[4],"p":[1.5]}"#, "a probability of 1.5"),
        (r#"{"step":0,"layer":1,"experts":[4,5],"p":[0.5,0.75]}"#, "does not come first"),
        (r#"{"step":0,"layer":1,"experts":[4]}"#, "missing field"),
        (r#"{"step":-1,"layer":1,"experts":[],"p":[]}"#, "invalid value"),
        (r#"{"step":0,"layer":1,"experts":[],"p":[],"x":1}"#, "unknown field"),
        (r#"{"step":0,"layer":1,"experts":[1],"p":[null]}"#, "invalid type"),
        ("[0,1", "line 2: "),
        ("\u{0}", "expected value"),
    ] {
        let text = error_of(&with_line(line)).to_string();
        assert!(text.starts_with("p: line 2: ") && text.contains(wanted), "{line}: {text}");
    }
    let many: Vec<u16> = (0..129).collect();
    let line = format!(r#"{{"step":0,"layer":1,"experts":{many:?},"p":{:?}}}"#, vec![0.5; 129]);
    assert!(error_of(&with_line(&line)).to_string().contains("129 experts, at most 128"));
    let deep = "[".repeat(MAX_LINE_BYTES / 2);
    assert!(matches!(error_of(&with_line(&deep)), PlanFileError::BadLine { line: 2, .. }));
    let long = " ".repeat(MAX_LINE_BYTES + 5);
    assert!(error_of(&with_line(&long)).to_string().contains("longer than"));
    let torn = with_line(r#"{"step":0,"layer":1,"experts":[],"p":[]}"#);
    let torn = torn.trim_end().to_owned();
    assert!(matches!(error_of(&torn), PlanFileError::Torn { line: 2, .. }));
}

#[test]
fn what_is_no_plan_file_is_said_to_be_none() {
    let good = serde_json::to_value(header()).unwrap();
    let changed = |key: &str, value: serde_json::Value| {
        let mut header = good.clone();
        header[key] = value;
        format!("{header}\n")
    };
    for (text, wanted) in [
        (String::new(), "empty"),
        ("{}\n".to_owned(), "no header"),
        (r#"{"tok": 1, "layers": [[6, 8]]}"#.to_owned() + "\n", "no header"),
        (changed("format", "trace".into()), "\"trace\""),
        (changed("version", 2.into()), "version 2"),
        (
            changed("shape", serde_json::json!({"moe_layers":[2,1],"n_experts":1,"top_k":1})),
            "ascending",
        ),
    ] {
        let error = error_of(&text).to_string();
        assert!(error.contains(wanted), "{text}: {error}");
    }
    let missing = PlanReader::open(Path::new("/nowhere/at/all")).unwrap_err();
    assert!(missing.to_string().contains("open failed"), "{missing}");
}

#[test]
fn a_plan_of_another_model_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = PlanWriter::create(&dir.path().join("p"), &header()).unwrap();
    let error = writer.write(&Plan::new(0, 3)).unwrap_err();
    assert!(error.to_string().contains("line 2: layer 3"), "{error}");
}
