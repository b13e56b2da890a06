//! The arithmetic of purchase units: every sum must be exact.

use serde_json::Value;

use crate::answer::{Detail, Problem};
use crate::config::Merchant;
use crate::money::{AmountFault, Currency, Money};
use crate::world::Unit;

/// Reads and checks every purchase unit of an order.
pub(crate) fn units(body: &Value, merchant: &Merchant) -> Result<Vec<Unit>, Problem> {
    let empty = Vec::new();
    let given = body.get("purchase_units").and_then(Value::as_array).unwrap_or(&empty);
    let mut units: Vec<Unit> = Vec::new();
    let mut found = Vec::new();
    for value in given {
        let reference_id =
            value.get("reference_id").and_then(Value::as_str).unwrap_or("default").to_owned();
        if given.len() > 1 && value.get("reference_id").is_none() {
            found.push(Detail::body("REFERENCE_ID_REQUIRED", "/purchase_units"));
        }
        if units.iter().any(|unit| unit.reference_id == reference_id) {
            found.push(Detail::body("DUPLICATE_REFERENCE_ID", "/purchase_units"));
        }
        check_payee(value, merchant)?;
        match unit_amount(&reference_id, value) {
            Ok(amount) => units.push(Unit {
                reference_id,
                body: value.as_object().cloned().unwrap_or_default(),
                amount,
                approved: None,
                authorizations: Vec::new(),
                captures: Vec::new(),
                refunds: Vec::new(),
                trackers: Vec::new(),
            }),
            Err(details) => found.extend(details),
        }
    }
    let mut currencies = units.iter().map(|unit| unit.amount.currency);
    if let Some(first) = currencies.next()
        && currencies.any(|other| other != first)
    {
        found.push(Detail::body("MULTI_CURRENCY_ORDER", "/purchase_units"));
    }
    if found.is_empty() { Ok(units) } else { Err(Problem::unprocessable(found)) }
}

/// Without platform permissions the money can only go to the caller.
fn check_payee(unit: &Value, merchant: &Merchant) -> Result<(), Problem> {
    let text = |name: &str| unit.pointer(&format!("/payee/{name}")).and_then(Value::as_str);
    let other_id = text("merchant_id").is_some_and(|id| id != merchant.merchant_id);
    let other_email = text("email_address").is_some_and(|email| email != merchant.email);
    if other_id || other_email {
        return Err(Problem::forbidden());
    }
    Ok(())
}

/// Where an error of a unit is: PayPal addresses units by their reference.
fn field(reference_id: &str, rest: &str) -> String {
    format!("/purchase_units/@reference_id=='{reference_id}'{rest}")
}

/// Reads a `{"currency_code", "value"}` that the schema has already accepted.
pub(crate) fn money(value: &Value, field: &str) -> Result<Money, Detail> {
    let code = value.get("currency_code").and_then(Value::as_str).unwrap_or_default();
    let text = value.get("value").and_then(Value::as_str).unwrap_or_default();
    let Some(currency) = Currency::from_code(code) else {
        let at = format!("{field}/currency_code");
        return Err(Detail::body("INVALID_CURRENCY_CODE", at).value(code));
    };
    Money::parse(currency, text).map_err(|fault| {
        let issue = match fault {
            AmountFault::DecimalsNotSupported => "DECIMALS_NOT_SUPPORTED",
            AmountFault::TooPrecise | AmountFault::Malformed => "DECIMAL_PRECISION",
            AmountFault::TooLarge => "MAX_VALUE_EXCEEDED",
        };
        Detail::body(issue, format!("{field}/value")).value(text)
    })
}

/// The parts of a breakdown with their signs in the total.
const PARTS: &[(&str, i128)] = &[
    ("item_total", 1),
    ("tax_total", 1),
    ("shipping", 1),
    ("handling", 1),
    ("insurance", 1),
    ("shipping_discount", -1),
    ("discount", -1),
];

/// Reads what is checked about one unit and collects what is wrong with it.
struct Reader<'a> {
    reference_id: &'a str,
    unit: &'a Value,
    currency: Currency,
    found: Vec<Detail>,
}

/// The amount of a unit whose sums agree, or everything that does not.
pub(crate) fn unit_amount(reference_id: &str, unit: &Value) -> Result<Money, Vec<Detail>> {
    let at = field(reference_id, "/amount");
    let amount = unit.get("amount").unwrap_or(&Value::Null);
    let total = money(amount, &at).map_err(|detail| vec![detail])?;
    let mut reader = Reader { reference_id, unit, currency: total.currency, found: Vec::new() };
    if total.minor <= 0 {
        reader.found.push(
            Detail::body("CANNOT_BE_ZERO_OR_NEGATIVE", format!("{at}/value")).value(total.value()),
        );
    }
    reader.breakdown(total);
    reader.items();
    if reader.found.is_empty() { Ok(total) } else { Err(reader.found) }
}

impl Reader<'_> {
    /// A part that may be absent and must not be negative or in another currency.
    fn part(&mut self, value: Option<&Value>, rest: &str) -> Option<i128> {
        let at = field(self.reference_id, rest);
        let value = value?;
        let money = match money(value, &at) {
            Ok(money) => money,
            Err(detail) => {
                self.found.push(detail);
                return None;
            }
        };
        if money.currency != self.currency {
            let at = format!("{at}/currency_code");
            self.found.push(Detail::body("MULTI_CURRENCY_ORDER", at).value(money.currency.code()));
            return None;
        }
        if money.minor < 0 {
            let at = format!("{at}/value");
            self.found.push(Detail::body("CANNOT_BE_NEGATIVE", at).value(money.value()));
            return None;
        }
        Some(i128::from(money.minor))
    }

    fn breakdown(&mut self, total: Money) {
        let Some(breakdown) = self.unit.pointer("/amount/breakdown") else {
            return;
        };
        let mut sum = 0_i128;
        let mut parts = 0_usize;
        for &(name, sign) in PARTS {
            let rest = format!("/amount/breakdown/{name}");
            if let Some(minor) = self.part(breakdown.get(name), &rest) {
                sum += sign * minor;
                parts += 1;
            }
        }
        if parts > 0 && sum != i128::from(total.minor) {
            let at = field(self.reference_id, "/amount/value");
            self.found.push(Detail::body("AMOUNT_MISMATCH", at).value(total.value()));
        }
    }

    fn items(&mut self) {
        let Some(items) = self.unit.get("items").and_then(Value::as_array) else {
            return;
        };
        if items.is_empty() {
            return;
        }
        let mut item_sum = 0_i128;
        let mut tax_sum = 0_i128;
        let mut any_tax = false;
        for (at, item) in items.iter().enumerate() {
            let quantity: i128 = item
                .get("quantity")
                .and_then(Value::as_str)
                .and_then(|text| text.parse().ok())
                .unwrap_or(1);
            let unit_amount =
                self.part(item.get("unit_amount"), &format!("/items/{at}/unit_amount"));
            item_sum += unit_amount.unwrap_or_default() * quantity;
            if let Some(tax) = self.part(item.get("tax"), &format!("/items/{at}/tax")) {
                any_tax = true;
                tax_sum += tax * quantity;
            }
        }
        self.total_of("item_total", item_sum, "ITEM_TOTAL_REQUIRED", "ITEM_TOTAL_MISMATCH");
        if any_tax {
            self.total_of("tax_total", tax_sum, "TAX_TOTAL_REQUIRED", "TAX_TOTAL_MISMATCH");
        }
    }

    /// Compares a sum over the items with its entry in the breakdown.
    fn total_of(&mut self, name: &str, sum: i128, missing: &str, differs: &str) {
        let rest = format!("/amount/breakdown/{name}");
        let at = field(self.reference_id, &rest);
        let Some(value) = self.unit.pointer(&rest) else {
            self.found.push(Detail::body(missing, at));
            return;
        };
        // A malformed part was already reported with the breakdown.
        if let Ok(given) = money(value, &at)
            && i128::from(given.minor) != sum
        {
            let at = format!("{at}/value");
            self.found.push(Detail::body(differs, at).value(given.value()));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn issues(unit: &Value) -> Vec<String> {
        unit_amount("default", unit)
            .err()
            .unwrap_or_default()
            .into_iter()
            .map(|detail| detail.issue)
            .collect()
    }

    fn usd(value: &str) -> Value {
        json!({"currency_code": "USD", "value": value})
    }

    #[test]
    fn sums_must_be_exact() {
        let unit = |total: &str, item_total: &str| {
            json!({
                "amount": {"currency_code": "USD", "value": total,
                           "breakdown": {"item_total": usd(item_total)}},
                "items": [{"name": "x", "quantity": "4", "unit_amount": usd("1.50")}],
            })
        };
        assert!(issues(&unit("6.00", "6")).is_empty());
        assert_eq!(issues(&unit("7.00", "6.00")), ["AMOUNT_MISMATCH"]);
        assert_eq!(issues(&unit("5.00", "5.00")), ["ITEM_TOTAL_MISMATCH"]);
    }

    #[test]
    fn tax_is_per_unit_and_already_rounded() {
        // 1.30 x 3 at 7.5 %: PayPal's own toolkit sends a total of 0.29 for three times 0.10.
        let unit = json!({
            "amount": {"currency_code": "USD", "value": "4.19",
                       "breakdown": {"item_total": usd("3.90"), "tax_total": usd("0.29")}},
            "items": [{"name": "x", "quantity": "3", "unit_amount": usd("1.30"), "tax": usd("0.10")}],
        });
        assert_eq!(issues(&unit), ["TAX_TOTAL_MISMATCH"]);
    }

    #[test]
    fn what_is_missing_or_negative_is_named() {
        let bare = json!({
            "amount": usd("1.00"),
            "items": [{"name": "x", "quantity": "1", "unit_amount": usd("1.00"), "tax": usd("0")}],
        });
        assert_eq!(issues(&bare), ["ITEM_TOTAL_REQUIRED", "TAX_TOTAL_REQUIRED"]);
        let yen = json!({"amount": {"currency_code": "JPY", "value": "705.00"}});
        assert_eq!(issues(&yen), ["DECIMALS_NOT_SUPPORTED"]);
        assert_eq!(issues(&json!({"amount": usd("0")})), ["CANNOT_BE_ZERO_OR_NEGATIVE"]);
    }
}
