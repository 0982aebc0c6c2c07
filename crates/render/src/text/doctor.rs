//! The requirements of a host: what is missing, and what does not work without it.

use crate::terminal::{Style, Tone, columns, pad, printable, wrap};
use teiji_model::host::Requirement;

/// The requirements as text of at most 100 columns.
pub fn table(all: &[Requirement], style: &Style) -> String {
    let name_width = all.iter().map(|c| columns(&printable(&c.name))).max().unwrap_or(0).min(30);
    let left = 9 + name_width + 2;
    let mut out = String::new();
    for c in all {
        let (mark, tone) = match (c.present, c.essential) {
            (true, _) => ("ok", Tone::Good),
            (false, true) => ("missing", Tone::Bad),
            (false, false) => ("absent", Tone::Strong),
        };
        let mark = style.paint(tone, &format!("{mark:<7}"));
        let mut lines = wrap(&style.ascii(&printable(&c.found)), 100 - left);
        for (label, text) in [("without it: ", &c.consequence), ("to get it: ", &c.remedy)] {
            if !c.present && !text.is_empty() {
                let text = format!("{label}{}", style.ascii(&printable(text)));
                lines.extend(wrap(&text, 100 - left));
            }
        }
        out += &format!("{mark}  {}  {}\n", pad(&printable(&c.name), name_width), lines[0]);
        for line in &lines[1..] {
            out += &format!("{:left$}{}\n", "", style.paint(Tone::Faint, line));
        }
    }
    let missing: Vec<&str> = all.iter().filter(|c| c.is_lacking()).map(|c| c.name.as_str()).collect();
    let verdict = if missing.is_empty() {
        style.paint(Tone::Good, "VMs with vhost-net NICs can be traced here.")
    } else {
        let text = format!("VMs cannot be traced here; missing: {}.", printable(&missing.join(", ")));
        wrap(&text, 100).iter().map(|l| style.paint(Tone::Bad, l)).collect::<Vec<_>>().join("\n")
    };
    out + "\n" + &verdict + "\n"
}
