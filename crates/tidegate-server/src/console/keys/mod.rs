//! The page about one key: charts, numbers, explanation and actions. Imports: admin_form,
//! error_page, form, layout, links, page, user.

mod actions;
mod chart;
mod forms;
mod limit_card;
mod overrides;
mod page;
mod query;

pub(super) use self::actions::{end_override, reset, revert_rule, set_override};
pub(super) use self::page::show;
