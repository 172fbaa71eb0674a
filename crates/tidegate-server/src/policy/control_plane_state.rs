//! What is wrong with a control plane.

use tidegate::Micros;

use super::runtime::field::timestamp;

/// What is wrong with a control plane.
#[derive(Default)]
pub(super) struct ControlPlaneState {
    /// Why the last resources were refused.
    pub(super) refusal: Option<String>,
    /// While no stream has a response: since when, and why.
    pub(super) silence: Option<(Micros, String)>,
}

impl ControlPlaneState {
    /// No stream has a response. The time of the first loss stays.
    pub(super) fn lose(&mut self, now: Micros, cause: String) {
        let since = self.silence.as_ref().map_or(now, |(since, _)| *since);
        self.silence = Some((since, cause));
    }

    /// A line for each problem; `None` without one. `has_limits` is whether resources are in force.
    pub(super) fn problems(&self, has_limits: bool) -> Option<String> {
        let pending = (!has_limits).then(|| {
            "control plane: no valid configuration yet; Envoy's requests are UNAVAILABLE".into()
        });
        let silent = self.silence.as_ref().map(|(since, cause)| {
            format!("control plane: no response since {}: {cause}", timestamp(*since))
        });
        let refused = self.refusal.as_ref();
        let refused = refused.map(|error| format!("control plane: configuration refused: {error}"));
        let problems: Vec<String> = [pending, silent, refused].into_iter().flatten().collect();
        (!problems.is_empty()).then(|| problems.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_named_with_the_time_of_the_first_loss() {
        let mut state = ControlPlaneState::default();
        assert_eq!(state.problems(true), None);
        state.lose(Micros::from_secs(60), "refused".into());
        state.lose(Micros::from_secs(70), "no reply".into());
        let silent = "control plane: no response since 1970-01-01T00:01:00Z: no reply";
        assert_eq!(state.problems(true).as_deref(), Some(silent));
        state.refusal = Some("a:1: unknown unit".into());
        let all = state.problems(false).unwrap();
        let lines: Vec<&str> = all.lines().collect();
        assert_eq!(lines.len(), 3, "{all}");
        assert!(lines[0].contains("no valid configuration yet") && lines[1] == silent, "{all}");
        assert!(lines[2].ends_with("configuration refused: a:1: unknown unit"), "{all}");
    }
}
