//! Names of the limits of one decision. Imports no other module of this crate.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate::RuleLimit;

/// Names the limits of one decision, so that a reader can match them between headers and body.
///
/// The name of a limit is [`RuleLimit::policy`]. A name may occur several times: ad-hoc limits
/// share one, and so do the limits of one rule under two keys. The second one is then called
/// `adhoc#2`. No rule name has a `#`.
///
/// ```
/// use tidegate::Rule;
/// use tidegate_tower::policy_names::PolicyNames;
///
/// let login = Rule::new("login", ["5/min".parse()?])?;
/// let mut names = PolicyNames::default();
/// assert_eq!(names.name(&login.limits()[0]), "login");
/// assert_eq!(names.name(&login.limits()[0]), "login#2");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default, Debug)]
pub struct PolicyNames<'a> {
    seen: SmallVec<[&'a str; 4]>,
}

impl<'a> PolicyNames<'a> {
    /// The name of the next enforced limit. Call it for all of them, in the order of the decision.
    /// It is borrowed unless it has a number.
    pub fn name(&mut self, limit: &'a RuleLimit) -> Cow<'a, str> {
        let name = limit.policy();
        let before = self.seen.iter().filter(|seen| **seen == name).count();
        self.seen.push(name);
        match before {
            0 => Cow::Borrowed(name),
            before => Cow::Owned(format!("{name}#{}", before + 1)),
        }
    }
}
