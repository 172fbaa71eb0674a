//! `money` and `prices` of a policy file.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use tidegate::pricing::{ModelPrice, MoneyUnit, Prices};

use crate::errors::field_error::FieldError;

/// What `prices` and the limits of rules with `unit: money` are counted in.
#[derive(Clone, PartialEq, Eq, Default, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Money", extend("required" = ["currency", "decimals"]))]
pub(crate) struct MoneyFile {
    /// Currency code.
    #[schemars(extend("examples" = ["USD"], "pattern" = r"^[A-Z]{3}$|\$\{"))]
    pub(crate) currency: String,
    /// One unit is 10^-`decimals` of the currency. One call costs at most 2^32 units: 4,294 USD
    /// with 6 decimals. Use fewer for a currency of small value.
    #[schemars(extend("examples" = [6], "minimum" = 0, "maximum" = 6))]
    pub(crate) decimals: u32,
}

/// Prices of a model, in units of `money` for 1,000,000 tokens. A call is rounded up to a whole
/// unit, once.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Price", extend("required" = ["input", "output"]))]
pub(crate) struct PriceFile {
    /// Input that is in no cache.
    #[schemars(extend("examples" = [2_500_000]))]
    pub(crate) input: u32,
    /// Input read from a cache; default: as `input`.
    #[schemars(with = "u32", extend("examples" = [1_250_000]))]
    pub(crate) cached_input: Option<u32>,
    /// Input written to a cache; default: as `input`.
    #[schemars(with = "u32", extend("examples" = [3_125_000]))]
    pub(crate) cache_write: Option<u32>,
    /// Output without reasoning.
    #[schemars(extend("examples" = [10_000_000]))]
    pub(crate) output: u32,
    /// Reasoning; default: as `output`.
    #[schemars(with = "u32", extend("examples" = [10_000_000]))]
    pub(crate) reasoning: Option<u32>,
}

/// The prices of a file by model; errors go to `faults`.
pub(crate) fn read(
    money: Option<&MoneyFile>,
    prices: &BTreeMap<String, PriceFile>,
    faults: &mut Vec<FieldError>,
) -> Option<Prices> {
    let unit = money.and_then(|MoneyFile { currency, decimals }| {
        let decimals = u8::try_from(*decimals).unwrap_or(u8::MAX);
        let fields = [
            ("money.currency", MoneyUnit::new(currency, 0)),
            ("money.decimals", MoneyUnit::new("USD", decimals)),
        ];
        for (field, checked) in fields {
            faults.extend(checked.err().map(|error| FieldError::new(field, "money", error)));
        }
        MoneyUnit::new(currency, decimals).ok()
    });
    if prices.is_empty() {
        return None;
    }
    if money.is_none() {
        let message = "prices need their unit; add money: { currency: USD, decimals: 6 }";
        faults.push(FieldError::new("prices", "prices", message));
    }
    let mut models = Vec::with_capacity(prices.len());
    for (name, &PriceFile { input, cached_input, cache_write, output, reasoning }) in prices {
        if let Err(error) = Prices::check_name(name) {
            faults.push(FieldError::new(&format!("prices.{name}"), "model", error));
            continue;
        }
        let price = ModelPrice { input, cached_input, cache_write, output, reasoning };
        models.push((name.as_str().into(), price));
    }
    let prices = Prices::new(unit?, models);
    prices.map_err(|error| faults.push(FieldError::new("prices", "prices", error))).ok()
}
