//! The page's script, and the content security policy that permits this script and nothing else.

use maud::PreEscaped;
use sha2::{Digest, Sha256};

/// The library that draws the charts, and what draws with it.
const LIBRARY: &str = include_str!("../../vendor/uplot/uPlot.iife.min.js");
const LICENCE: &str = include_str!("../../vendor/uplot/LICENSE");
const CHARTS: &str = include_str!("charts.js");

/// The content of the page's only script.
pub(super) fn script() -> PreEscaped<String> {
    PreEscaped(format!("\n/*\n{LICENCE}*/\n{LIBRARY}\n{CHARTS}"))
}

/// The content security policy of a page with this script: the browser loads nothing, whatever the page contains, and
/// executes nothing but the script with this hash.
pub(super) fn security(script: &str) -> String {
    let hash = base64(&Sha256::digest(script.as_bytes()));
    format!(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'"
    )
}

/// Base64 with padding (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let at = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            let used = digit <= three.len();
            let index = (bits >> (18 - 6 * digit) & 63) as usize;
            out.push(if used { char::from(DIGITS[index]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_the_standard() {
        let all = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
        assert_eq!(all, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }
}
