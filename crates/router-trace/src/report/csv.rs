use super::table::Table;
use crate::error::TraceError;
use std::io::Write;

/// Writes one table as CSV (RFC 4180): a row of column names, then the rows, numbers with
/// every digit, a missing figure as an empty field.
///
/// # Errors
///
/// [`TraceError::Io`], with the rows written before.
pub fn write_csv(table: &Table, out: impl Write) -> Result<(), TraceError> {
    let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(out);
    let failed =
        |records, source| TraceError::Io { operation: "write CSV", records, bytes: 0, source };
    let names = table.columns.iter().map(|column| &column.name);
    writer.write_record(names).map_err(|e| failed(0, e.into()))?;
    for (at, row) in (0..).zip(&table.rows) {
        let fields = row.iter().map(super::table::Cell::exact);
        writer.write_record(fields).map_err(|e| failed(at, e.into()))?;
    }
    writer.flush().map_err(|e| failed(table.rows.len() as u64, e))
}

#[cfg(test)]
mod tests {
    use super::super::table::{Cell, Column};
    use super::*;

    #[test]
    fn fields_are_quoted_and_read_back() {
        let columns = vec![Column::new("trace", "Trace"), Column::new("share", "Share")];
        let mut table = Table::new("t", "T", "", columns);
        table.push(vec!["a,\"b\"\r\nc".into(), Cell::Share(0.25)]);
        table.push(vec!["d".into(), Cell::Missing]);
        let mut bytes = Vec::new();
        write_csv(&table, &mut bytes).unwrap();
        assert_eq!(bytes, b"trace,share\r\n\"a,\"\"b\"\"\r\nc\",0.25\r\nd,\r\n");
        let mut reader = csv::Reader::from_reader(&bytes[..]);
        let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        assert_eq!((&rows[0][0], &rows[1][1]), ("a,\"b\"\r\nc", ""));
    }

    #[test]
    fn a_full_disk_is_told() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let table = Table::new("t", "T", "", vec![Column::new("a", "A")]);
        assert_eq!(write_csv(&table, Full).unwrap_err().kind(), "io");
    }
}
