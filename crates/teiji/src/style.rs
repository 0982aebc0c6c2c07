//! What standard output, standard error and files can show.

use std::io::IsTerminal;
use teiji_render::terminal::Style;

/// What standard output can show: colour on a terminal unless `NO_COLOR` is set, and more than ASCII if the locale is
/// UTF-8.
pub fn stdout() -> Style {
    of(&std::io::stdout())
}

/// What standard error can show.
pub fn stderr() -> Style {
    of(&std::io::stderr())
}

fn of(stream: &impl IsTerminal) -> Style {
    let set = |name| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|t| t == "dumb");
    let colour = stream.is_terminal() && !set("NO_COLOR") && !dumb;
    Style { colour, unicode: utf8_locale() }
}

/// The style of files.
pub fn file() -> Style {
    Style { colour: false, unicode: utf8_locale() }
}

/// Whether the encoding of the locale is UTF-8, by the first of `LC_ALL`, `LC_CTYPE` and `LANG` that is set.
fn utf8_locale() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|value| !value.is_empty())
        .unwrap_or_default()
        .to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}
