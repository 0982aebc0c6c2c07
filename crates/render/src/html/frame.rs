//! The places that charts are drawn in. Text in SVG is scaled with its chart, so a chart is drawn twice: for a page, and
//! for a narrow screen; the style sheet shows one of them.

use maud::{Markup, html};

/// The size of a chart, in its own units: about pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Frame {
    /// Width.
    pub w: f64,
    /// Where bars begin.
    pub left: f64,
}

/// For a page, also when it is printed.
pub(super) const WIDE: Frame = Frame { w: 1000.0, left: 120.0 };
/// For a narrow screen.
pub(super) const NARROW: Frame = Frame { w: 400.0, left: 92.0 };

impl Frame {
    pub(super) fn is_narrow(&self) -> bool {
        self.w < WIDE.w
    }
}

/// A chart for either place.
pub(super) fn both(chart: impl Fn(Frame) -> Markup) -> Markup {
    html! {
        div.wide { (chart(WIDE)) }
        div.narrow { (chart(NARROW)) }
    }
}

/// A length with one decimal, without a needless `.0`.
pub(super) fn fine(length: f64) -> String {
    let text = format!("{length:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}
