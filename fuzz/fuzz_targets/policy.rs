//! Policy files.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_config::{PolicyLoader, RuleFile, ServerSettings};

fuzz_target!(|text: &str| {
    match PolicyLoader::load_str("policy.yaml", text) {
        Ok(loaded) => {
            for rule in &loaded.rules {
                let json = serde_json::to_string(&rule.file).expect("a rule is JSON");
                let again = RuleFile::from_json(&json).expect("the same rule");
                let again = again.load(&ServerSettings::default()).expect("a rule that loads");
                assert_eq!(again.file, rule.file);
            }
        }
        Err(problems) => {
            assert!(problems.count() > 0);
            for problem in problems.iter() {
                assert!(problem.to_string().lines().all(|line| line.chars().count() < 500));
            }
        }
    }
});
