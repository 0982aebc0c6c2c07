//! Columns of text.

use crate::terminal::{Style, Tone, columns};

/// One cell.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Its text; one line.
    pub text: String,
    /// Its tone.
    pub tone: Tone,
    /// Whether it is right-aligned.
    pub right: bool,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Cell { text: text.to_owned(), tone: Tone::Plain, right: false }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Cell { text, tone: Tone::Plain, right: false }
    }
}

impl Cell {
    /// A right-aligned cell.
    pub fn right(text: impl Into<String>) -> Self {
        Cell { right: true, ..Cell::from(text.into()) }
    }

    /// This cell in another tone.
    pub fn tone(mut self, tone: Tone) -> Self {
        self.tone = tone;
        self
    }
}

/// Rows whose columns are as wide as their widest cell, two spaces apart.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<Cell>>,
    indent: usize,
}

impl Table {
    /// A table that is indented by this many spaces.
    pub fn indented(indent: usize) -> Self {
        Table { rows: Vec::new(), indent }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The lines, without trailing spaces.
    pub fn lines(&self, style: &Style) -> Vec<String> {
        let most = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let text = |cell: &Cell| style.ascii(&cell.text);
        let mut widths = vec![0; most];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(columns(&text(cell)));
            }
        }
        self.rows.iter().map(|row| self.line(style, row, &widths)).collect()
    }

    fn line(&self, style: &Style, row: &[Cell], widths: &[usize]) -> String {
        let mut line = " ".repeat(self.indent);
        let mut pending = 0; // spaces that are written only if text follows
        for (cell, &width) in row.iter().zip(widths) {
            let text = style.ascii(&cell.text);
            let pad = width - columns(&text);
            if !text.is_empty() {
                line.push_str(&" ".repeat(pending + if cell.right { pad } else { 0 }));
                line.push_str(&style.paint(cell.tone, &text));
                pending = 0;
                if !cell.right {
                    pending = pad;
                }
            } else {
                pending += pad;
            }
            if width > 0 {
                pending += 2;
            }
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_nothing_trails() {
        let mut table = Table::indented(1);
        table.row(["a".into(), Cell::right("1"), "x".into()]);
        table.row(["bbb".into(), Cell::right("100"), "".into()]);
        table.row(["".into(), Cell::right("7"), "y".into()]);
        assert_eq!(table.lines(&Style::PLAIN), [" a      1  x", " bbb  100", "        7  y"]);
    }
}
