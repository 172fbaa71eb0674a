//! Asks a store, as a program does that has the library in it.

use std::sync::Arc;

use tidegate::{EngineError, Limiter};

use super::{Answer, Trouble};
use crate::bench::template::Names;

/// One of those who ask a store at once. They share the connections that the library keeps.
pub(crate) struct Asked(pub(crate) Arc<Limited>);

/// A limit on a store.
pub(crate) struct Limited {
    pub(crate) limiter: Limiter,
    pub(crate) names: Names,
    pub(crate) cost: u64,
}

impl Asked {
    pub(crate) async fn ask(
        &mut self,
        keys: &[u32],
        answers: &mut Vec<Answer>,
    ) -> Result<(), Trouble> {
        let Limited { limiter, names, cost } = &*self.0;
        for key in keys {
            answers.push(match limiter.check(&names.name(*key)).cost(*cost).await {
                Ok(decision) if decision.allowed() => Answer::Allow,
                Ok(_) => Answer::Deny,
                Err(error) => Answer::Trouble(trouble(&error)),
            });
        }
        Ok(())
    }
}

fn trouble(error: &EngineError) -> Trouble {
    let kind = match error {
        EngineError::Unavailable(_) => "store unavailable",
        EngineError::Ambiguous(_) => "store ambiguous",
        EngineError::Refused(_) => "store refused",
        _ => "store",
    };
    Trouble::new(kind, error)
}
