//! SVG elements and XML escaping.

use std::fmt::Write;

/// Collects SVG elements. Text is escaped; class names are constants of this crate.
#[derive(Debug, Default)]
pub(crate) struct Canvas {
    text: String,
}

/// A rectangle in pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rect {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl Rect {
    pub(crate) fn right(&self) -> f64 {
        self.x + self.width
    }

    pub(crate) fn bottom(&self) -> f64 {
        self.y + self.height
    }
}

/// Heights of steps in pixels.
pub(crate) trait StepHeights: ExactSizeIterator<Item = f64> {}
impl<T: ExactSizeIterator<Item = f64>> StepHeights for T {}

/// How a text is aligned to its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TextAnchor {
    Start,
    Middle,
    End,
}

impl Canvas {
    pub(crate) fn text(&mut self, x: f64, y: f64, anchor: TextAnchor, class: &str, text: &str) {
        let anchor = match anchor {
            TextAnchor::Start => "",
            TextAnchor::Middle => " text-anchor=\"middle\"",
            TextAnchor::End => " text-anchor=\"end\"",
        };
        let text = escaped(text);
        self.write(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\"{anchor} class=\"{class}\">{text}</text>\n"
        ));
    }

    pub(crate) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.write(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n"
        ));
    }

    pub(crate) fn rectangle(&mut self, class: &str, area: Rect) {
        let Rect { x, y, width, height } = area;
        self.write(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>\n"
        ));
    }

    /// A step line: one step of equal width for each height above the bottom of the area.
    pub(crate) fn steps(&mut self, class: &str, area: Rect, heights: impl StepHeights) {
        let path = step_path(area, heights);
        self.write(format_args!("<path class=\"{class}\" d=\"M{path}\"/>\n"));
    }

    /// The same, filled down to the bottom of the area.
    pub(crate) fn filled_steps(&mut self, class: &str, area: Rect, heights: impl StepHeights) {
        let path = step_path(area, heights);
        let (x, bottom) = (area.x, area.bottom());
        self.write(format_args!(
            "<path class=\"{class}\" d=\"M{x:.1} {bottom:.1}L{path}V{bottom:.1}Z\"/>\n"
        ));
    }

    /// These elements, then those of `other` in front of them.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.text += &other.text;
        self
    }

    /// The elements in an `svg` element with this size and these attributes, after `head`.
    pub(crate) fn into_svg(
        self,
        (width, height): (f64, f64),
        attributes: &str,
        head: &str,
    ) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             {attributes}>\n{head}{}</svg>\n",
            self.text
        )
    }

    pub(crate) fn write(&mut self, what: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.text.write_fmt(what);
    }
}

fn step_path(area: Rect, heights: impl StepHeights) -> String {
    let width = area.width / heights.len().max(1) as f64;
    let mut path = String::new();
    let mut last = None;
    for (step, height) in heights.enumerate() {
        let (x, y) = (area.x + step as f64 * width, area.bottom() - height);
        // Equal heights need no further point.
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

/// The title of a chart, which screen readers read.
pub(crate) fn title(text: &str) -> String {
    format!("<title>{}</title>\n", escaped(text))
}

/// Escapes text for XML. Characters that XML does not allow become U+FFFD.
fn escaped(text: &str) -> String {
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
    fn markup_in_text_is_escaped() {
        assert_eq!(
            escaped("</text><script>alert('x')&\"\u{0}\u{1b}"),
            "&lt;/text&gt;&lt;script&gt;alert(&#39;x&#39;)&amp;&quot;\u{fffd}\u{fffd}"
        );
        let mut canvas = Canvas::default();
        canvas.text(1.0, 2.0, TextAnchor::End, "small", "a<b");
        assert_eq!(
            canvas.text,
            "<text x=\"1.0\" y=\"2.0\" text-anchor=\"end\" class=\"small\">a&lt;b</text>\n"
        );
    }

    #[test]
    fn a_path_has_points_only_where_the_height_changes() {
        let area = Rect { x: 10.0, y: 0.0, width: 40.0, height: 100.0 };
        let mut canvas = Canvas::default();
        canvas.steps("used", area, [0.0, 50.0, 50.0, 0.0].into_iter());
        assert_eq!(
            canvas.text,
            "<path class=\"used\" d=\"M10.0 100.0H20.0V50.0H40.0V100.0H50.0\"/>\n"
        );
    }
}
