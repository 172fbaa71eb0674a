//! Rules in canonical form.

use tidegate::policy::{KeyPart, OnMissingKey, PathPattern};
use tidegate::{Limit, RuleDraft};

use crate::rule_file::{MatchFile, OneOrMany, OverrideFile, RuleFile};

/// The rule in canonical form: limits in canonical notation, names in one case, no default values.
pub(crate) fn canonical(written: &RuleFile, draft: &RuleDraft) -> RuleFile {
    let texts = |limits: &[Limit]| limits.iter().map(Limit::to_string).collect();
    let headers = draft.matches.headers.iter();
    let overrides = written.overrides.iter().zip(&draft.overrides).map(|(one, of)| OverrideFile {
        key: one.key.texts().to_vec().into(),
        limits: texts(&of.limits),
        until: of.until.and_then(|until| {
            let micros = i64::try_from(until.get()).ok()?;
            Some(jiff::Timestamp::from_microsecond(micros).ok()?.to_string())
        }),
    });
    let written_plans = draft.plans.as_ref();
    let plans = written_plans
        .into_iter()
        .flat_map(|plans| &plans.plans)
        .map(|(name, limits)| (name.to_string(), texts(limits)));
    RuleFile {
        name: draft.name.clone(),
        matches: MatchFile {
            method: OneOrMany::from(
                draft.matches.methods.iter().map(|m| m.to_string()).collect::<Vec<_>>(),
            ),
            path: draft.matches.path.as_ref().map(PathPattern::to_string),
            host: draft.matches.host.as_deref().map(str::to_string),
            header: headers.map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        },
        key: (!draft.key.is_empty()).then(|| draft.key.iter().map(KeyPart::to_string).collect()),
        on_missing_key: written.on_missing_key.filter(|on| *on != OnMissingKey::default()),
        limits: texts(&draft.limits),
        plans: plans.collect(),
        plan: written_plans
            .and_then(|plans| plans.header.as_deref())
            .map(|name| format!("header:{name}")),
        default_plan: written.default_plan.clone(),
        shadow_limits: texts(&draft.shadow_limits),
        shadow: written.shadow,
        stop: written.stop.filter(|stop| *stop),
        cost: draft.cost_header.as_deref().map(|name| format!("header:{name}")),
        unit: written.unit,
        estimate: written.estimate,
        reserve: written.reserve,
        on_expiry: written.on_expiry,
        lease: written.lease,
        overrides: overrides.collect(),
        allow: written.allow.clone(),
        deny: written.deny.clone(),
        on_store_failure: written.on_store_failure,
        fallback_ratio: written.fallback_ratio,
    }
}
