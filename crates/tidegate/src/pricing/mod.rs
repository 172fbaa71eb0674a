//! Prices of language models, and what a call costs under rules that count requests, tokens or
//! money. Imports: engine.
//!
//! - `prices`: the price of each model. `usage`: the tokens of one call. `usage_shapes`: usage as
//!   providers report it (feature `serde`).
//!
//! ```
//! use tidegate::Unit;
//! use tidegate::pricing::{ModelPrice, MoneyUnit, Prices, TokenUsage};
//!
//! // 2.50 USD for 1,000,000 tokens of input, 10 USD for output, in units of 10^-6 USD.
//! let uncached = ModelPrice::new(2_500_000, 10_000_000);
//! let price = ModelPrice { cached_input: Some(1_250_000), ..uncached };
//! let prices = Prices::new(MoneyUnit::new("USD", 6)?, [("gpt-x".into(), price)])?;
//! let fresh = TokenUsage { input: 1_000, output: 312, ..TokenUsage::default() };
//! let usage = TokenUsage { cached_input: 200, ..fresh };
//! let (_, price) = prices.find("gpt-x").unwrap();
//! assert_eq!(usage.cost(Unit::Tokens, Some(price)), Some(1_512));
//! assert_eq!(usage.cost(Unit::Money, Some(price)), Some(2_500 + 250 + 3_120));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod prices;
mod usage;
#[cfg(feature = "serde")]
mod usage_shapes;

pub use self::prices::{InvalidPrices, ModelPrice, MoneyUnit, Prices};
pub use self::usage::TokenUsage;
#[cfg(feature = "serde")]
pub use self::usage_shapes::InvalidUsage;
