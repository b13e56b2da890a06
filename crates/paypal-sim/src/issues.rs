//! PayPal's catalogue of `issue` codes with the texts it prints beside them.
//!
//! The table in `issues.tsv` holds what a wallet integration can meet: codes, HTTP statuses and
//! descriptions as PayPal's OpenAPI documents of 2024-02 enumerate them. A few codes are newer
//! than those documents; their texts are ours.

use std::sync::LazyLock;

struct Entry {
    issue: &'static str,
    operation: &'static str,
    status: u16,
    description: &'static str,
}

static TABLE: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    include_str!("issues.tsv")
        .lines()
        .filter_map(entry)
        .collect()
});

fn entry(line: &'static str) -> Option<Entry> {
    let mut columns = line.split('\t');
    Some(Entry {
        issue: columns.next().filter(|issue| !issue.starts_with('#'))?,
        operation: columns.next()?,
        status: columns.next()?.parse().ok()?,
        description: columns.next().unwrap_or_default(),
    })
}

fn find(issue: &str, operation: &str) -> Option<&'static Entry> {
    let of_issue = || TABLE.iter().filter(|entry| entry.issue == issue);
    of_issue()
        .find(|entry| entry.operation == operation)
        .or_else(|| of_issue().find(|entry| entry.operation == "*"))
}

/// The text PayPal prints for this issue in answers of this operation, if it is known.
pub(crate) fn description(issue: &str, operation: &str) -> Option<&'static str> {
    find(issue, operation)
        .map(|entry| entry.description)
        .filter(|text| !text.is_empty())
}

/// The HTTP status an issue comes with; unknown issues are business refusals.
pub(crate) fn status(issue: &str, operation: &str) -> u16 {
    find(issue, operation).map_or(422, |entry| entry.status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_read() {
        let lines = include_str!("issues.tsv").lines().count();
        assert_eq!(TABLE.len() + 1, lines);
    }

    #[test]
    fn an_operation_may_have_its_own_text() {
        let captured = description("DUPLICATE_INVOICE_ID", "captures.refund").unwrap();
        assert!(captured.contains("refund"));
        assert_ne!(
            Some(captured),
            description("DUPLICATE_INVOICE_ID", "orders.create")
        );
        assert_eq!(status("INVALID_RESOURCE_ID", "orders.get"), 404);
        assert_eq!(status("SOMETHING_NEW", "orders.get"), 422);
    }
}
