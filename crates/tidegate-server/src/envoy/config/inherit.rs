//! What a descriptor has from the descriptors around it, and from its domain.

use tidegate::{OnStoreFailure, Share};

use super::fields::Fields;
use super::load::Notes;
use crate::config::Ratio;
use crate::config::tree::Name;

/// The fields that a domain may have too.
pub(super) const FIELDS: [&str; 4] =
    ["charge_denied", "allow_override", "on_store_failure", "fallback_ratio"];

/// What holds for a descriptor and all below it, unless they say otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Inherited {
    pub(super) charge_denied: bool,
    pub(super) allow_override: bool,
    failure: Failure,
    share: Share,
}

/// What happens while the store does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failure {
    Fallback,
    Deny,
    Allow,
    /// Envoy is told, and decides by itself.
    Unavailable,
}

impl Failure {
    const ALL: [(&'static str, Self); 4] = [
        ("fallback", Self::Fallback),
        ("deny", Self::Deny),
        ("allow", Self::Allow),
        ("unavailable", Self::Unavailable),
    ];
}

impl Inherited {
    pub(super) fn new(on_store_failure: OnStoreFailure) -> Self {
        let (failure, share) = match on_store_failure {
            OnStoreFailure::Fallback(share) => (Failure::Fallback, share),
            OnStoreFailure::Deny => (Failure::Deny, Share::HALF),
            OnStoreFailure::Allow => (Failure::Allow, Share::HALF),
        };
        Self { charge_denied: false, allow_override: true, failure, share }
    }

    /// The same with what these fields say.
    pub(super) fn with(self, fields: &Fields<'_>, notes: &mut Notes) -> Self {
        Self {
            charge_denied: fields.flag("charge_denied", notes).unwrap_or(self.charge_denied),
            allow_override: fields.flag("allow_override", notes).unwrap_or(self.allow_override),
            failure: failure(fields, notes).unwrap_or(self.failure),
            share: share(fields, notes).unwrap_or(self.share),
        }
    }

    pub(super) fn on_store_failure(&self) -> OnStoreFailure {
        match self.failure {
            Failure::Fallback => OnStoreFailure::Fallback(self.share),
            Failure::Deny | Failure::Unavailable => OnStoreFailure::Deny,
            Failure::Allow => OnStoreFailure::Allow,
        }
    }

    pub(super) fn says_unavailable(&self) -> bool {
        self.failure == Failure::Unavailable
    }
}

fn failure(fields: &Fields<'_>, notes: &mut Notes) -> Option<Failure> {
    let given = fields.text("on_store_failure", notes)?;
    let known = Failure::ALL.into_iter().find(|(word, _)| *word == given.text);
    if known.is_none() {
        let meant = tidegate::closest(given.text, Failure::ALL.iter().map(|(word, _)| *word));
        let advice = match meant {
            Some(meant) => format!("did you mean {meant}?"),
            None => "use fallback, deny, allow or unavailable".into(),
        };
        let message = format!("unknown on_store_failure {}; {advice}", Name(given.text));
        notes.wrong(given.span, &fields.path("on_store_failure"), message);
    }
    known.map(|(_, failure)| failure)
}

fn share(fields: &Fields<'_>, notes: &mut Notes) -> Option<Share> {
    let given = fields.text("fallback_ratio", notes)?;
    let ratio = given.text.parse().ok().and_then(Ratio::new);
    if ratio.is_none() {
        notes.wrong(given.span, &fields.path("fallback_ratio"), Ratio::ADVICE);
    }
    ratio.map(Ratio::share)
}
