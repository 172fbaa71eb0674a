//! The field `rlqs` of a descriptor.

use tidegate::Limit;

use super::diagnostics::Diagnostics;
use super::fields::LocatedFields;
use super::share_limit::{ShareLimit, UnsuitableLimit};

/// The shares of a descriptor with `rlqs: true` and these limits, with errors in `diagnostics`.
pub(crate) fn read(
    fields: &LocatedFields<'_>,
    limits: &[Limit],
    charge_denied: bool,
    diagnostics: &mut Diagnostics,
) -> Option<ShareLimit> {
    let values = &fields.values;
    if !values.rlqs {
        return None;
    }
    let others = [
        ("shadow_mode", values.shadow_mode),
        ("quota_mode", values.quota_mode),
        ("charge_denied", charge_denied),
        ("estimate", values.estimate.is_some()),
        ("reservation_ttl", values.reservation_ttl.is_some()),
    ];
    let shares = match (limits, others.iter().find(|(_, is_set)| *is_set)) {
        (_, Some((other, _))) => Err(format!("rlqs cannot be combined with {other}; remove one")),
        ([limit], None) => ShareLimit::new(limit).map_err(|error| error.to_string()),
        _ => Err(UnsuitableLimit::NotABucket.to_string()),
    };
    let error = |message: String| {
        let span = fields.value_span("rlqs").unwrap_or(fields.start);
        diagnostics.error(span, &fields.path("rlqs"), message);
    };
    shares.map_err(error).ok()
}
