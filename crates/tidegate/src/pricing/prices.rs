//! The price of each model.

use std::collections::BTreeMap;
use std::fmt;

use super::usage::TokenUsage;
use crate::{Unit, UnitCost};

/// Prices of one model, in [units of money](MoneyUnit) for 1,000,000 tokens. At 32 bits, 1,000,000
/// tokens of one kind cost at most one [`Cost`](crate::Cost).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModelPrice {
    /// Input that is in no cache.
    pub input: u32,
    /// Input read from a cache; `None` for the price of input.
    pub cached_input: Option<u32>,
    /// Input written to a cache; `None` for the price of input.
    pub cache_write: Option<u32>,
    /// Output without reasoning.
    pub output: u32,
    /// Reasoning; `None` for the price of output.
    pub reasoning: Option<u32>,
}

impl ModelPrice {
    const TOKENS: u128 = 1_000_000;

    /// One price for all input, one for all output.
    pub const fn new(input: u32, output: u32) -> Self {
        Self { input, cached_input: None, cache_write: None, output, reasoning: None }
    }

    /// What a token of output or reasoning costs at most.
    pub fn per_output_token(&self) -> UnitCost {
        let dearest = self.output.max(self.reasoning.unwrap_or_default());
        UnitCost::new(dearest, 1_000_000).unwrap_or(UnitCost::ZERO)
    }

    /// The cost of a call, rounded up once: splitting a call never lowers the total. It may exceed
    /// [`Cost::MAX`](crate::Cost::MAX).
    pub fn cost(&self, usage: &TokenUsage) -> u64 {
        let kinds = [
            (usage.input, self.input),
            (usage.cached_input, self.cached_input.unwrap_or(self.input)),
            (usage.cache_write, self.cache_write.unwrap_or(self.input)),
            (usage.output, self.output),
            (usage.reasoning, self.reasoning.unwrap_or(self.output)),
        ];
        let millionths = kinds.map(|(tokens, price)| u128::from(tokens) * u128::from(price));
        let cost = millionths.iter().sum::<u128>().div_ceil(Self::TOKENS);
        u64::try_from(cost).unwrap_or(u64::MAX)
    }
}

/// The name of a model without the date at its end, if it has one.
fn without_date(model: &str) -> Option<&str> {
    let is_number = |digits: &str, len: usize| {
        digits.len() == len && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    let (name, last) = model.rsplit_once(['-', '@'])?;
    if is_number(last, 8) {
        return Some(name);
    }
    let (year, month) = name.rsplit_once('-')?;
    let (name, year) = year.rsplit_once('-')?;
    let is_date = is_number(year, 4) && is_number(month, 2) && is_number(last, 2);
    is_date.then_some(name)
}

impl TokenUsage {
    /// The cost under a rule of this unit; `None` for money without a price. It may exceed
    /// [`Cost::MAX`](crate::Cost::MAX).
    pub fn cost(&self, unit: Unit, price: Option<&ModelPrice>) -> Option<u64> {
        match unit {
            Unit::Requests => Some(1),
            Unit::Tokens => Some(self.total()),
            Unit::Money => price.map(|price| price.cost(self)),
        }
    }
}

/// What prices and limits of rules in money are counted in: 10^-`decimals` of a currency.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MoneyUnit {
    currency: Box<str>,
    decimals: u8,
}

impl MoneyUnit {
    /// The largest number of decimals.
    pub const MAX_DECIMALS: u8 = 6;

    /// The currency is a code of three capital letters, such as `USD`.
    pub fn new(currency: &str, decimals: u8) -> Result<Self, InvalidPrices> {
        if currency.len() != 3 || !currency.bytes().all(|b| b.is_ascii_uppercase()) {
            return Err(InvalidPrices::Currency(currency.into()));
        }
        if decimals > Self::MAX_DECIMALS {
            return Err(InvalidPrices::Decimals(decimals));
        }
        Ok(Self { currency: currency.into(), decimals })
    }

    /// The code of the currency.
    pub fn currency(&self) -> &str {
        &self.currency
    }

    /// The number of decimals of one unit.
    pub fn decimals(&self) -> u8 {
        self.decimals
    }
}

/// The prices of all models of a policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prices {
    unit: MoneyUnit,
    models: BTreeMap<Box<str>, ModelPrice>,
}

impl Prices {
    /// The name whose price holds for models without one.
    pub const ANY: &'static str = "*";
    /// The largest number of models.
    pub const MAX_MODELS: usize = 1_000;
    /// The longest name of a model in bytes.
    pub const MAX_NAME: usize = 128;

    /// Prices of these models; of two with one name, the last.
    pub fn new(
        unit: MoneyUnit,
        models: impl IntoIterator<Item = (Box<str>, ModelPrice)>,
    ) -> Result<Self, InvalidPrices> {
        let mut prices = Self { unit, models: BTreeMap::new() };
        for (name, price) in models {
            Self::check_name(&name)?;
            prices.models.insert(name, price);
            if prices.models.len() > Self::MAX_MODELS {
                return Err(InvalidPrices::TooMany);
            }
        }
        Ok(prices)
    }

    /// Refuses the name of a model that is empty, too long, or has control characters.
    pub fn check_name(name: &str) -> Result<(), InvalidPrices> {
        let fits = (1..=Self::MAX_NAME).contains(&name.len());
        if fits && !name.chars().any(char::is_control) {
            return Ok(());
        }
        Err(InvalidPrices::Model(name.chars().take(Self::MAX_NAME).collect()))
    }

    /// What the prices are counted in.
    pub fn unit(&self) -> &MoneyUnit {
        &self.unit
    }

    /// The price of a model and the name that it is listed under: its own, its own without a date
    /// (`-2026-01-31`, `-20260131` or `@20260131`, as providers name a version of a model), or
    /// [`Prices::ANY`].
    pub fn find(&self, model: &str) -> Option<(&str, &ModelPrice)> {
        let listed = |name| self.models.get_key_value(name);
        let found = listed(model).or_else(|| listed(without_date(model)?));
        found.or_else(|| listed(Self::ANY)).map(|(name, price)| (&**name, price))
    }

    /// A number for the name of a model, the same in every process: the FNV-1a hash.
    pub fn tag(model: &str) -> u32 {
        let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        model.bytes().fold(0x811c_9dc5, step)
    }

    /// The model of this [tag](Self::tag), if it has a price of its own.
    pub fn by_tag(&self, tag: u32) -> Option<(&str, &ModelPrice)> {
        self.iter().find(|(name, _)| *name != Self::ANY && Self::tag(name) == tag)
    }

    /// The models in the order of their names, and their prices.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &ModelPrice)> {
        self.models.iter().map(|(name, price)| (&**name, price))
    }
}

/// Why prices are refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidPrices {
    /// Not the code of a currency.
    Currency(Box<str>),
    /// More decimals than [`MoneyUnit::MAX_DECIMALS`].
    Decimals(u8),
    /// A name that no model has.
    Model(Box<str>),
    /// More than [`Prices::MAX_MODELS`].
    TooMany,
}

impl fmt::Display for InvalidPrices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Currency(given) => {
                write!(f, "currency {given:?}; use a code of three capital letters like USD")
            }
            Self::Decimals(given) => {
                write!(f, "{given} decimals; use 0 to {}", MoneyUnit::MAX_DECIMALS)
            }
            Self::Model(name) => write!(
                f,
                "model {name:?}; use 1 to {} bytes without control characters",
                Prices::MAX_NAME
            ),
            Self::TooMany => {
                write!(f, "too many models; use at most {}, and \"*\"", Prices::MAX_MODELS)
            }
        }
    }
}

impl std::error::Error for InvalidPrices {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cost;

    fn usage(input: u64, output: u64) -> TokenUsage {
        TokenUsage { input, output, ..TokenUsage::default() }
    }

    #[test]
    fn a_call_is_rounded_up_once() {
        let price = ModelPrice::new(1, 1);
        assert_eq!(price.cost(&TokenUsage::default()), 0);
        assert_eq!(price.cost(&usage(1, 0)), 1);
        assert_eq!(price.cost(&usage(1, 1)), 1, "not one for each kind");
        assert_eq!(price.cost(&usage(500_000, 500_000)), 1);
        assert_eq!(price.cost(&usage(500_000, 500_001)), 2);
    }

    #[test]
    fn splitting_a_call_never_lowers_its_total() {
        let price = ModelPrice { reasoning: Some(7), ..ModelPrice::new(2_500_001, 9_999_999) };
        for (input, output) in [(1, 1), (999, 3), (123_457, 77)] {
            let whole = price.cost(&usage(input, output));
            for cut in [0, 1, input / 3, input] {
                let parts = price.cost(&usage(cut, 0)) + price.cost(&usage(input - cut, output));
                assert!((whole..=whole + 1).contains(&parts), "{input} {output} {cut}");
            }
        }
    }

    #[test]
    fn a_kind_without_a_price_takes_that_of_its_parent() {
        let all = TokenUsage {
            input: 1_000_000,
            cached_input: 1_000_000,
            cache_write: 1_000_000,
            output: 1_000_000,
            reasoning: 1_000_000,
        };
        assert_eq!(ModelPrice::new(3, 10).cost(&all), 3 + 3 + 3 + 10 + 10);
        let price = ModelPrice {
            cached_input: Some(1),
            cache_write: Some(4),
            reasoning: Some(0),
            ..ModelPrice::new(3, 10)
        };
        assert_eq!(price.cost(&all), 3 + 1 + 4 + 10);
    }

    #[test]
    fn no_usage_overflows() {
        let highest = ModelPrice::new(u32::MAX, u32::MAX);
        assert!(highest.cost(&usage(1_000_000, 0)) < Cost::MAX.get());
        assert_eq!(highest.cost(&usage(u64::MAX, u64::MAX)), u64::MAX);
        assert_eq!(usage(u64::MAX, 1).total(), u64::MAX);
    }

    #[test]
    fn the_cost_depends_on_the_unit() {
        let price = ModelPrice::new(1_000_000, 2_000_000);
        let cost = |unit, price| usage(100, 10).cost(unit, price);
        assert_eq!(cost(Unit::Requests, None), Some(1));
        assert_eq!(cost(Unit::Tokens, None), Some(110));
        assert_eq!(cost(Unit::Money, Some(&price)), Some(120));
        assert_eq!(cost(Unit::Money, None), None, "never free");
    }

    #[test]
    fn an_unknown_model_has_the_price_of_any() {
        let usd = || MoneyUnit::new("USD", 6).unwrap();
        let named = ("a".into(), ModelPrice::new(1, 2));
        let prices = Prices::new(usd(), [named.clone()]).unwrap();
        assert_eq!(prices.find("a"), Some(("a", &ModelPrice::new(1, 2))));
        assert_eq!(prices.find("b"), None);
        let any = (Prices::ANY.into(), ModelPrice::new(3, 4));
        let prices = Prices::new(usd(), [named, any]).unwrap();
        assert_eq!(prices.find("b"), Some(("*", &ModelPrice::new(3, 4))));
        assert_eq!(prices.by_tag(Prices::tag("a")), Some(("a", &ModelPrice::new(1, 2))));
        assert_eq!(["b", "*"].map(|name| prices.by_tag(Prices::tag(name))), [None; 2]);
        assert_eq!(Prices::tag("a"), 0xe40c_292c);
    }

    #[test]
    fn bad_prices_are_refused() {
        for currency in ["", "usd", "US", "USDT", "€"] {
            assert!(MoneyUnit::new(currency, 6).is_err(), "{currency}");
        }
        assert_eq!(MoneyUnit::new("JPY", 7), Err(InvalidPrices::Decimals(7)));
        let unit = MoneyUnit::new("JPY", 0).unwrap();
        let of = |names: Vec<String>| {
            let models = names.into_iter().map(|name| (name.into(), ModelPrice::new(1, 1)));
            Prices::new(unit.clone(), models)
        };
        for name in [String::new(), "a\n".into(), "n".repeat(129)] {
            assert!(matches!(of(vec![name]), Err(InvalidPrices::Model(_))));
        }
        let many = |count: usize| of((0..count).map(|i| format!("m{i}")).collect());
        assert!(many(Prices::MAX_MODELS).is_ok());
        assert_eq!(many(Prices::MAX_MODELS + 1), Err(InvalidPrices::TooMany));
    }
}
