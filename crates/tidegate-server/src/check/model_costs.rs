//! What a call to a language model costs under each rule of a policy.

use tidegate::pricing::{ModelPrice, Prices, TokenUsage};
use tidegate::{Cost, HoldId, PolicyRule, RuleCost, RuleLimit, Unit, UnitCost};

use super::active_policy::ActivePolicy;
use super::decision::CheckError;

/// A model and the tokens of a call, as the caller names them.
#[derive(Clone, Copy, Default, Debug)]
pub struct ModelUsage<'a> {
    /// The name of the model.
    pub model: Option<&'a str>,
    /// What the call consumed, if the caller reports it.
    pub usage: Option<TokenUsage>,
}

/// The costs of a call that has ended.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct UsageCosts<'p> {
    /// The cost of each rule that counts tokens or money.
    pub rules: Vec<RuleCost<'p>>,
    /// The name that the price is listed under, if it is not that of the model.
    pub priced_as: Option<&'p str>,
}

impl ActivePolicy {
    /// The cost of a rule that a reservation names without one: by the usage and the unit of the
    /// rule, else its estimate, else 1. At least 1: a hold of nothing is no hold.
    pub fn cost_to_reserve(&self, rule: &str, call: &ModelUsage<'_>) -> Result<u64, CheckError> {
        // An unknown rule is reported later, by the plan.
        let Some(rule) = self.policy.rule(rule) else { return Ok(1) };
        if rule.unit() == Some(Unit::Money) && (call.model.is_some() || call.usage.is_some()) {
            self.price_to_reserve(rule, call.model)?;
        }
        let price = call.model.and_then(|model| self.prices.as_ref()?.find(model));
        let by_usage = rule
            .unit()
            .zip(call.usage)
            .and_then(|(unit, usage)| usage.cost(unit, price.map(|(_, price)| price)));
        let estimate = || rule.estimate().map_or(1, Cost::get);
        Ok(by_usage.unwrap_or_else(estimate).max(1))
    }

    /// What a reservation costs under a rule before any output, and for each token of output: those
    /// of input and their price, by the usage. Output and reasoning share one bound, and so the
    /// higher price counts.
    pub fn cost_of_output(
        &self,
        rule: &str,
        call: &ModelUsage<'_>,
    ) -> Result<(u64, UnitCost), CheckError> {
        let fixed = self.cost_to_reserve(rule, call)?;
        let unit = self.policy.rule(rule).and_then(|rule| rule.unit());
        let price = call.model.and_then(|model| self.prices.as_ref()?.find(model));
        let per_token = match (unit, price) {
            (Some(Unit::Tokens), _) => UnitCost::ONE,
            (Some(Unit::Money), Some((_, price))) => price.per_output_token(),
            _ => UnitCost::ZERO,
        };
        let input = call.usage.filter(|_| !per_token.is_zero());
        let input = unit
            .zip(input)
            .and_then(|(unit, usage)| usage.cost(unit, price.map(|(_, price)| price)));
        Ok((input.unwrap_or(fixed), per_token))
    }

    /// Refuses a reservation of money whose price is unknown.
    fn price_to_reserve(&self, rule: &PolicyRule, model: Option<&str>) -> Result<(), CheckError> {
        let Some(model) = model else {
            return Err(CheckError::MissingModel(rule.name().into()));
        };
        let price = self.prices.as_ref().and_then(|prices| prices.find(model));
        price.map_or_else(|| Err(CheckError::UnknownModel(model.into())), |_| Ok(()))
    }

    /// The costs of a call under every rule that counts tokens or money. A model without a price
    /// has that of the reservation's model. If that has none either, rules of money are left out,
    /// and so they are charged as reserved.
    pub fn costs_of_usage(
        &self,
        usage: &TokenUsage,
        model: Option<&str>,
        reservation: HoldId,
    ) -> UsageCosts<'_> {
        let price = self.price_at_commit(model, reservation);
        let rules = self.policy.rules().iter().filter_map(|rule| {
            let unit = rule.unit().filter(|unit| *unit != Unit::Requests)?;
            let cost = usage.cost(unit, price.map(|(_, price)| price))?;
            // What is above the maximum is cut and reported when it is charged.
            Some(RuleCost::new(rule.name(), Cost::total(cost)).if_held())
        });
        let priced_as = price.map(|(name, _)| name).filter(|name| Some(*name) != model);
        UsageCosts { rules: rules.collect(), priced_as }
    }

    /// The price of a model, and the name that it is listed under.
    fn price_at_commit(
        &self,
        model: Option<&str>,
        reservation: HoldId,
    ) -> Option<(&str, &ModelPrice)> {
        let prices = self.prices.as_ref()?;
        let own = model.and_then(|model| prices.find(model));
        own.or_else(|| prices.by_tag(reservation.tag()))
    }

    /// The model of a reservation, if it has a price of its own.
    pub fn reserved_model(&self, reservation: HoldId) -> Option<&str> {
        self.prices.as_ref()?.by_tag(reservation.tag()).map(|(name, _)| name)
    }

    /// The tag of a model in the id of its reservations: that of the name that its price is listed
    /// under, if it is not one for all others.
    pub fn model_tag(&self, model: &str) -> u32 {
        let listed = self.prices.as_ref().and_then(|prices| prices.find(model));
        let own = listed.filter(|(name, _)| *name != Prices::ANY);
        Prices::tag(own.map_or(model, |(name, _)| name))
    }

    /// Whether a reservation holds permits of the limit that its settlement charges.
    pub fn is_settled_later(&self, limit: &RuleLimit) -> bool {
        let unit = self.policy.rule(limit.rule()).and_then(|rule| rule.unit());
        limit.limit().lease().is_none() && unit != Some(Unit::Requests)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_config::PolicyLoader;

    use super::super::active_policy::AdhocLimits;
    use super::*;
    use crate::observe::metrics::Metrics;

    fn active(any: &str) -> ActivePolicy {
        let text = format!(
            "money: {{ currency: USD, decimals: 6 }}\n\
             prices: {{ small: {{ input: 1000000, output: 2000000 }}, free: {{ input: 0, output: 0 }}{any} }}\n\
             rules:\n\
             - {{ name: plain, limits: [9/s] }}\n\
             - {{ name: requests, unit: requests, limits: [60/m] }}\n\
             - {{ name: tokens, unit: tokens, estimate: 800, limits: [fixed-window 9999/m] }}\n\
             - {{ name: spend, unit: money, limits: [fixed-window 9999/d] }}\n"
        );
        let loaded = PolicyLoader::load_str("policy.yaml", &text).unwrap();
        let proxies = std::iter::empty::<tidegate::Network>().collect();
        let metrics = Metrics::default();
        ActivePolicy::new(loaded.policy, proxies, AdhocLimits::Allow, &metrics)
            .with_prices(loaded.settings.prices)
    }

    const ANY: &str = ", \"*\": { input: 5000000, output: 5000000 }";
    const RULES: [&str; 4] = ["plain", "requests", "tokens", "spend"];

    fn usage(input: u64, output: u64) -> TokenUsage {
        TokenUsage { input, output, ..TokenUsage::default() }
    }

    fn reserve(active: &ActivePolicy, model: Option<&str>, usage: Option<TokenUsage>) -> String {
        let call = ModelUsage { model, usage };
        let costs = RULES.map(|rule| match active.cost_to_reserve(rule, &call) {
            Ok(cost) => cost.to_string(),
            Err(error) => error.to_string(),
        });
        costs.join(", ")
    }

    #[test]
    fn a_reservation_costs_what_its_usage_does_under_each_rule() {
        let active = active("");
        let used = Some(usage(100, 10));
        assert_eq!(reserve(&active, Some("small"), used), "1, 1, 110, 120");
        assert_eq!(reserve(&active, Some("free"), used), "1, 1, 110, 1");
        assert_eq!(reserve(&active, Some("small"), None), "1, 1, 800, 1");
        assert_eq!(reserve(&active, None, None), "1, 1, 800, 1");
        let required =
            "1, 1, 110, is required: rule \"spend\" counts money, which depends on the model";
        assert_eq!(reserve(&active, None, used), required);
        let unknown = "1, 1, 110, no price for model \"large\"; add it to prices of the policy, or \
                       \"*\" for all others";
        assert_eq!(reserve(&active, Some("large"), used), unknown);
        assert_eq!(reserve(&self::active(ANY), Some("large"), used), "1, 1, 110, 550");
    }

    #[test]
    fn usage_is_priced_by_its_model_or_by_that_of_the_reservation() {
        let random = HoldId::from(7);
        let of_small = random.with_tag(Prices::tag("small"));
        assert_eq!((of_small.tag(), of_small.get() as u32), (Prices::tag("small"), 7));
        let costs = |active: &ActivePolicy, model, id| {
            let costs = active.costs_of_usage(&usage(100, 10), model, id);
            let rules = costs.rules.iter().map(|one| format!("{} {}", one.rule, one.cost));
            (rules.collect::<Vec<_>>().join(", "), costs.priced_as.map(str::to_string))
        };
        let without = active("");
        let small = |name: Option<&str>| ("tokens 110, spend 120".into(), name.map(Into::into));
        assert_eq!(costs(&without, Some("small"), random), small(None));
        assert_eq!(costs(&without, Some("large"), of_small), small(Some("small")));
        assert_eq!(costs(&without, None, of_small), small(Some("small")));
        // Never free: what is not named is charged as reserved.
        assert_eq!(costs(&without, Some("large"), random), ("tokens 110".into(), None));
        let any = ("tokens 110, spend 550".into(), Some("*".into()));
        assert_eq!(costs(&active(ANY), Some("large"), of_small), any);
    }

    #[test]
    fn a_token_of_output_costs_one_token_and_its_price() {
        let active = active("");
        let call = ModelUsage { model: Some("small"), usage: Some(usage(100, 0)) };
        let costs = RULES.map(|rule| {
            let (input, per_token) = active.cost_of_output(rule, &call).unwrap();
            (input, per_token.of(Cost::total(50)).get())
        });
        assert_eq!(costs, [(1, 0), (1, 0), (100, 50), (100, 100)]);
        let free = ModelUsage { model: Some("free"), ..call };
        let (input, per_token) = active.cost_of_output("spend", &free).unwrap();
        assert_eq!((input, per_token.is_zero()), (1, true), "a hold of nothing is no hold");
        assert!(active.cost_of_output("spend", &ModelUsage { model: None, ..call }).is_err());
    }

    #[test]
    fn a_dated_name_has_the_price_of_its_model_and_not_that_of_all_others() {
        let active = active(ANY);
        let random = HoldId::from(7);
        for dated in ["small-2026-01-31", "small-20260131", "small@20260131"] {
            let costs = active.costs_of_usage(&usage(100, 10), Some(dated), random);
            assert_eq!(costs.priced_as, Some("small"), "{dated}");
            assert_eq!(active.model_tag(dated), Prices::tag("small"));
        }
        for other in
            ["small-2026", "small-2", "smaller-2026-01-31", "-2026-01-31", "small-1234567x"]
        {
            let costs = active.costs_of_usage(&usage(100, 10), Some(other), random);
            assert_eq!(costs.priced_as, Some("*"), "{other}");
        }
    }

    #[test]
    fn the_model_of_a_reservation_is_in_its_id() {
        let active = active(ANY);
        let of = |model| HoldId::from(7).with_tag(Prices::tag(model));
        assert_eq!(active.reserved_model(of("small")), Some("small"));
        assert_eq!(active.reserved_model(of("large")), None);
        assert_eq!(active.reserved_model(HoldId::from(7)), None);
    }
}
