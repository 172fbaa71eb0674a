//! CSV with a header row. Every record is one line.

use std::borrow::Cow;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};

use super::field::{EntryBuilder, LogField};
use crate::replay::log_entry::{AccessLogEntry, LineError};

/// Columns, from the header row.
#[derive(Debug)]
pub(crate) struct CsvColumns {
    cells: CsvCells,
    columns: Vec<(LogField, String)>,
}

impl CsvColumns {
    /// Detects the separator: comma, semicolon or tab.
    pub(crate) fn new(header: &[u8]) -> Result<Self, LineError> {
        let count = |separator: u8| header.iter().filter(|&&byte| byte == separator).count();
        let separator = *b"\t;,".iter().max_by_key(|&&byte| count(byte)).unwrap_or(&b',');
        let mut cells = CsvCells::new(separator);
        let mut columns: Vec<(LogField, String)> = Vec::new();
        for name in cells.split(header)? {
            let name = name?;
            let is_header = name.starts_with("header:");
            let field = if is_header { LogField::Header } else { LogField::of(name) };
            columns.push((field, LogField::header_name(name).into_owned()));
        }
        let has = |field: LogField| columns.iter().any(|(known, _)| *known == field);
        match (has(LogField::Time), has(LogField::Target)) {
            (true, true) => Ok(Self { cells, columns }),
            (false, _) => Err("the header row has no column named time or timestamp"),
            (_, false) => Err("the header row has no column named path or uri"),
        }
    }

    pub(crate) fn parse<'a>(&'a mut self, line: &[u8]) -> Result<AccessLogEntry<'a>, LineError> {
        let mut entry = AccessLogEntry::default();
        let mut builder = EntryBuilder::default();
        let mut cells = self.cells.split(line)?;
        for (field, name) in &self.columns {
            let value = cells.next().ok_or("fewer columns than the header row")??;
            builder.put(*field, Cow::Borrowed(name), Cow::Borrowed(value), &mut entry)?;
        }
        if cells.next().is_some() {
            return Err("more columns than the header row");
        }
        builder.finish(&mut entry)?;
        Ok(entry)
    }
}

/// Splits lines into cells.
#[derive(Debug)]
struct CsvCells {
    reader: Reader,
    /// The cells of a line, unquoted, one after the other.
    text: Vec<u8>,
    ends: [usize; Self::MAX],
}

impl CsvCells {
    const MAX: usize = 256;

    fn new(separator: u8) -> Self {
        let reader = ReaderBuilder::new().delimiter(separator).build();
        Self { reader, text: Vec::new(), ends: [0; Self::MAX] }
    }

    /// The cells without blanks around them; an error for one that is not UTF-8.
    fn split(
        &mut self,
        line: &[u8],
    ) -> Result<impl Iterator<Item = Result<&str, LineError>>, LineError> {
        self.reader.reset();
        self.text.resize(line.len(), 0);
        let (_, _, written, count) = self.reader.read_record(line, &mut self.text, &mut self.ends);
        // Without further input the last cell ends.
        let (text, ends) = (&mut self.text[written..], &mut self.ends[count..]);
        let (result, _, _, last) = self.reader.read_record(&[], text, ends);
        if result != ReadRecordResult::Record {
            return Err("more than 256 columns");
        }
        let (text, mut start) = (&self.text, 0);
        Ok(self.ends[..count + last].iter().map(move |&end| {
            let cell = &text[std::mem::replace(&mut start, end)..end];
            std::str::from_utf8(cell).map(str::trim).map_err(|_| "not UTF-8")
        }))
    }
}
