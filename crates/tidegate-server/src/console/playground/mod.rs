//! The playground: limits on synthetic traffic. Imports: form, layout, page, user.

mod export;
mod form;
mod input;
mod page;
mod presets;
mod results;

pub(super) use self::page::show;
