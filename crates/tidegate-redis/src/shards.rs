//! Which servers of a Cluster a call asks.

use std::sync::PoisonError;

use tidegate::{Call, Op, Shards};

use crate::engine::Redis;
use crate::keys::subject;
use crate::slot::Slot;

impl Redis {
    /// The servers of the slots of a call, as far as they are known without asking anybody. One server
    /// that has everything is one shard, and so is a Cluster of which nothing is known.
    pub(crate) fn shards_of(&self, call: &Call<'_>) -> Shards {
        if self.route.spans_slots() {
            return Shards::ONE;
        }
        let number = |key: &str| self.route.number(Slot::of(key));
        if let Op::Settle { id, .. } | Op::Renew { id, .. } = call.op {
            return Shards::NONE.and(number(&self.names.hold(id)));
        }
        let agreed = self.agreed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(secret) = agreed.as_ref().map(|agreed| agreed.secret.clone()) else {
            return Shards::ONE;
        };
        drop(agreed);
        let of_charges = call.charges.iter().map(|charge| subject(&secret, charge.key));
        of_charges.fold(Shards::NONE, |shards, tag| shards.and(number(&self.names.state(tag, ""))))
    }
}
