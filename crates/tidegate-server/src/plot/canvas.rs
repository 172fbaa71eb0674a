//! The elements of a picture, written one after the other.

use std::fmt::Write;

/// A picture in the making. What stands in text is escaped; class names are ours.
#[derive(Debug, Default)]
pub(super) struct Canvas {
    written: String,
}

/// A rectangle in pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Area {
    pub(super) fn right(&self) -> f64 {
        self.x + self.width
    }

    pub(super) fn bottom(&self) -> f64 {
        self.y + self.height
    }
}

/// Where a text stands in relation to its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Canvas {
    pub(super) fn text(&mut self, x: f64, y: f64, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let text = escaped(text);
        self.write(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\"{anchor} class=\"{class}\">{text}</text>\n"
        ));
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.write(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n"
        ));
    }

    pub(super) fn rectangle(&mut self, class: &str, area: Area) {
        let Area { x, y, width, height } = area;
        self.write(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>\n"
        ));
    }

    /// A line that goes from step to step: `heights` above the bottom of the area.
    pub(super) fn steps(
        &mut self,
        class: &str,
        area: Area,
        heights: impl ExactSizeIterator<Item = f64>,
    ) {
        let path = step_path(area, heights);
        self.write(format_args!("<path class=\"{class}\" d=\"M{path}\"/>\n"));
    }

    /// The same, filled down to the bottom.
    pub(super) fn filled_steps(
        &mut self,
        class: &str,
        area: Area,
        heights: impl ExactSizeIterator<Item = f64>,
    ) {
        let path = step_path(area, heights);
        let (x, bottom) = (area.x, area.bottom());
        self.write(format_args!(
            "<path class=\"{class}\" d=\"M{x:.1} {bottom:.1}L{path}V{bottom:.1}Z\"/>\n"
        ));
    }

    /// What was written so far.
    pub(super) fn finish(self) -> String {
        self.written
    }

    pub(super) fn write(&mut self, what: std::fmt::Arguments<'_>) {
        // A string takes whatever it is given.
        let _ = self.written.write_fmt(what);
    }
}

fn step_path(area: Area, heights: impl ExactSizeIterator<Item = f64>) -> String {
    let width = area.width / heights.len().max(1) as f64;
    let mut path = String::new();
    let mut last = None;
    for (step, height) in heights.enumerate() {
        let (x, y) = (area.x + step as f64 * width, area.bottom() - height);
        // Level ground needs no point.
        if last != Some(y) {
            let _ = match last {
                None => write!(path, "{x:.1} {y:.1}"),
                Some(_) => write!(path, "H{x:.1}V{y:.1}"),
            };
            last = Some(y);
        }
    }
    let _ = write!(path, "H{:.1}", area.right());
    path
}

/// Text as XML takes it. What XML has no place for becomes a replacement character.
pub(super) fn escaped(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => written.push_str("&amp;"),
            '<' => written.push_str("&lt;"),
            '>' => written.push_str("&gt;"),
            '"' => written.push_str("&quot;"),
            '\'' => written.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => written.push('\u{fffd}'),
            letter if letter.is_control() => written.push('\u{fffd}'),
            letter => written.push(letter),
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_stays_text() {
        assert_eq!(
            escaped("</text><script>alert('x')&\"\u{0}\u{1b}"),
            "&lt;/text&gt;&lt;script&gt;alert(&#39;x&#39;)&amp;&quot;\u{fffd}\u{fffd}"
        );
        let mut canvas = Canvas::default();
        canvas.text(1.0, 2.0, Anchor::End, "small", "a<b");
        assert_eq!(
            canvas.finish(),
            "<text x=\"1.0\" y=\"2.0\" text-anchor=\"end\" class=\"small\">a&lt;b</text>\n"
        );
    }

    #[test]
    fn a_path_has_points_where_it_bends() {
        let area = Area { x: 10.0, y: 0.0, width: 40.0, height: 100.0 };
        let mut canvas = Canvas::default();
        canvas.steps("used", area, [0.0, 50.0, 50.0, 0.0].into_iter());
        assert_eq!(
            canvas.finish(),
            "<path class=\"used\" d=\"M10.0 100.0H20.0V50.0H40.0V100.0H50.0\"/>\n"
        );
    }
}
