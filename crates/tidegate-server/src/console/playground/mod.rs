//! The playground: limits on synthetic traffic. Imports: admin_form, error_page, form, layout,
//! links, page, user.

mod apply;
mod export;
mod form;
mod input;
mod page;
mod presets;
mod results;

pub(super) use self::apply::apply;
pub(super) use self::page::show;
