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

static TABLE: LazyLock<Vec<Entry>> =
    LazyLock::new(|| include_str!("issues.tsv").lines().filter_map(entry).collect());

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
    find(issue, operation).map(|entry| entry.description).filter(|text| !text.is_empty())
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
        assert_ne!(Some(captured), description("DUPLICATE_INVOICE_ID", "orders.create"));
        assert_eq!(status("INVALID_RESOURCE_ID", "orders.get"), 404);
        assert_eq!(status("SOMETHING_NEW", "orders.get"), 422);
    }

    /// Texts are PayPal's own wherever its documents, which lie beside the repository, have one.
    #[test]
    fn texts_are_those_of_the_documents() {
        const OURS: &[&str] =
            &["REAUTHORIZATION_TOO_SOON", "SETUP_TOKEN_NOT_APPROVED", "SETUP_TOKEN_ALREADY_USED"];
        let named = std::env::var_os("EARNEST_SHARED").map(std::path::PathBuf::from);
        let beside = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .map(|folder| folder.join("shared"));
        let folder = named
            .into_iter()
            .chain(beside)
            .map(|folder| folder.join("paypal-openapi"))
            .find(|folder| folder.is_dir());
        let Some(folder) = folder else {
            eprintln!("skipped: PayPal's OpenAPI documents are not here");
            return;
        };
        let read = |name: &str| {
            let text = std::fs::read_to_string(folder.join(name)).unwrap();
            serde_json::from_str::<serde_json::Value>(&text).unwrap().to_string()
        };
        let documents = read("checkout_orders_v2.json") + &read("payments_payment_v2.json");
        for entry in TABLE.iter().filter(|entry| !OURS.contains(&entry.issue)) {
            let issue = serde_json::Value::from(entry.issue).to_string();
            let text = serde_json::Value::from(entry.description).to_string();
            assert!(documents.contains(&issue), "{issue} is not PayPal's");
            assert!(
                entry.description.is_empty() || documents.contains(&text),
                "{issue}: {text} is not PayPal's"
            );
        }
        assert!(!documents.contains("SETUP_TOKEN_NOT_APPROVED"));
    }
}
