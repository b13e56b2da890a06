//! The request bodies PayPal describes, as far as a wallet integration meets them.

use crate::check::{Field, Rule, Shape, optional, required};

const fn text(min: usize, max: usize, shape: Shape) -> Rule {
    Rule::Text { min, max, shape }
}

static CODE: Rule = text(1, 255, Shape::Code);
static ID: Rule = text(1, 255, Shape::Id);
static URL: Rule = text(1, 4_000, Shape::Url);
static FLAG: Rule = Rule::Flag;
static LINE_127: Rule = text(1, 127, Shape::Free);
static UP_TO_127: Rule = text(0, 127, Shape::Free);
static UP_TO_140: Rule = text(0, 140, Shape::Free);
static UP_TO_300: Rule = text(0, 300, Shape::Free);
static SOFT_DESCRIPTOR: Rule = text(1, 22, Shape::Free);
static CURRENCY: Rule = text(3, 3, Shape::Free);
static AMOUNT: Rule = text(0, 32, Shape::Amount);
static EMAIL: Rule = text(3, 254, Shape::Email);
static PAYER_ID: Rule = text(13, 13, Shape::PayerId);
static COUNTRY: Rule = text(2, 2, Shape::Country);
static LOCALE: Rule = text(2, 10, Shape::Locale);

static MONEY: Rule =
    Rule::Object(&[required("currency_code", &CURRENCY), required("value", &AMOUNT)]);

static ADDRESS: Rule = Rule::Object(&[
    optional("address_line_1", &UP_TO_300),
    optional("address_line_2", &UP_TO_300),
    optional("admin_area_2", &text(0, 120, Shape::Free)),
    optional("admin_area_1", &UP_TO_300),
    optional("postal_code", &text(0, 60, Shape::Free)),
    required("country_code", &COUNTRY),
]);

static NAME: Rule = Rule::Object(&[
    optional("given_name", &UP_TO_140),
    optional("surname", &UP_TO_140),
    optional("full_name", &UP_TO_300),
]);

static PAYER: Rule = Rule::Object(&[
    optional("email_address", &EMAIL),
    optional("payer_id", &PAYER_ID),
    optional("name", &NAME),
    optional("address", &ADDRESS),
]);

static BREAKDOWN: Rule = Rule::Object(&[
    optional("item_total", &MONEY),
    optional("shipping", &MONEY),
    optional("handling", &MONEY),
    optional("tax_total", &MONEY),
    optional("insurance", &MONEY),
    optional("shipping_discount", &MONEY),
    optional("discount", &MONEY),
]);

static AMOUNT_WITH_BREAKDOWN: Rule = Rule::Object(&[
    required("currency_code", &CURRENCY),
    required("value", &AMOUNT),
    optional("breakdown", &BREAKDOWN),
]);

static ITEM: Rule = Rule::Object(&[
    required("name", &LINE_127),
    required("unit_amount", &MONEY),
    optional("tax", &MONEY),
    required("quantity", &text(1, 10, Shape::Quantity)),
    optional("description", &UP_TO_127),
    optional("sku", &UP_TO_127),
    optional("category", &Rule::OneOf(&["DIGITAL_GOODS", "PHYSICAL_GOODS", "DONATION"])),
]);

static ITEMS: Rule = Rule::List { min: 0, max: usize::MAX, of: &ITEM };

static PAYEE: Rule =
    Rule::Object(&[optional("email_address", &EMAIL), optional("merchant_id", &PAYER_ID)]);

static SHIPPING: Rule = Rule::Object(&[
    optional("name", &NAME),
    optional("type", &CODE),
    optional("address", &ADDRESS),
]);

static PURCHASE_UNIT: Rule = Rule::Object(&[
    optional("reference_id", &text(1, 256, Shape::Free)),
    required("amount", &AMOUNT_WITH_BREAKDOWN),
    optional("payee", &PAYEE),
    optional("description", &LINE_127),
    optional("custom_id", &LINE_127),
    optional("invoice_id", &LINE_127),
    optional("soft_descriptor", &SOFT_DESCRIPTOR),
    optional("items", &ITEMS),
    optional("shipping", &SHIPPING),
]);

static INTENT: Rule = Rule::OneOf(&["CAPTURE", "AUTHORIZE"]);

static EXPERIENCE_CONTEXT: Rule = Rule::Object(&[
    optional("brand_name", &text(1, 127, Shape::Line)),
    optional("locale", &LOCALE),
    optional(
        "shipping_preference",
        &Rule::OneOf(&["GET_FROM_FILE", "NO_SHIPPING", "SET_PROVIDED_ADDRESS"]),
    ),
    optional("return_url", &URL),
    optional("cancel_url", &URL),
    optional("landing_page", &Rule::OneOf(&["LOGIN", "GUEST_CHECKOUT", "NO_PREFERENCE"])),
    optional("user_action", &Rule::OneOf(&["CONTINUE", "PAY_NOW"])),
    optional(
        "payment_method_preference",
        &Rule::OneOf(&["UNRESTRICTED", "IMMEDIATE_PAYMENT_REQUIRED"]),
    ),
]);

static USAGE_PATTERN: Rule = Rule::OneOf(&[
    "IMMEDIATE",
    "DEFERRED",
    "RECURRING_PREPAID",
    "RECURRING_POSTPAID",
    "THRESHOLD_PREPAID",
    "THRESHOLD_POSTPAID",
    "SUBSCRIPTION_PREPAID",
    "SUBSCRIPTION_POSTPAID",
    "UNSCHEDULED_PREPAID",
    "UNSCHEDULED_POSTPAID",
    "INSTALLMENT_PREPAID",
    "INSTALLMENT_POSTPAID",
]);

static STORED_CREDENTIAL: Rule = Rule::Object(&[
    required("payment_initiator", &Rule::OneOf(&["CUSTOMER", "MERCHANT"])),
    optional("usage", &Rule::OneOf(&["FIRST", "SUBSEQUENT", "DERIVED"])),
    optional("usage_pattern", &USAGE_PATTERN),
    optional("charge_pattern", &USAGE_PATTERN),
]);

static VAULT_ATTRIBUTES: Rule = Rule::Object(&[
    optional("customer", &Rule::Object(&[optional("id", &text(1, 22, Shape::Id))])),
    optional(
        "vault",
        &Rule::Object(&[
            optional("store_in_vault", &Rule::OneOf(&["ON_SUCCESS"])),
            required("usage_type", &Rule::OneOf(&["MERCHANT", "PLATFORM"])),
            optional("customer_type", &Rule::OneOf(&["CONSUMER", "BUSINESS"])),
            optional("permit_multiple_payment_tokens", &FLAG),
        ]),
    ),
]);

static ORDER_WALLET: Rule = Rule::Object(&[
    optional("vault_id", &ID),
    optional("email_address", &EMAIL),
    optional("name", &NAME),
    optional("address", &ADDRESS),
    optional("attributes", &VAULT_ATTRIBUTES),
    optional("experience_context", &EXPERIENCE_CONTEXT),
    optional("stored_credential", &STORED_CREDENTIAL),
]);

static ORDER_TOKEN: Rule =
    Rule::Object(&[required("id", &ID), required("type", &Rule::OneOf(&["BILLING_AGREEMENT"]))]);

static ANY_OBJECT: Rule = Rule::Object(&[]);

const ORDER_SOURCE_FIELDS: &[Field] = &[
    optional("paypal", &ORDER_WALLET),
    optional("token", &ORDER_TOKEN),
    optional("card", &ANY_OBJECT),
    optional("venmo", &ANY_OBJECT),
];

static ORDER_SOURCE: Rule = Rule::Object(ORDER_SOURCE_FIELDS);

static APPLICATION_CONTEXT: Rule = Rule::Object(&[
    optional("brand_name", &LINE_127),
    optional("locale", &LOCALE),
    optional("landing_page", &Rule::OneOf(&["LOGIN", "BILLING", "NO_PREFERENCE"])),
    optional(
        "shipping_preference",
        &Rule::OneOf(&["GET_FROM_FILE", "NO_SHIPPING", "SET_PROVIDED_ADDRESS"]),
    ),
    optional("user_action", &Rule::OneOf(&["CONTINUE", "PAY_NOW"])),
    optional("return_url", &URL),
    optional("cancel_url", &URL),
]);

/// `POST /v2/checkout/orders`.
pub(crate) static ORDER: Rule = Rule::Object(&[
    required("intent", &INTENT),
    optional("payer", &PAYER),
    required("purchase_units", &Rule::List { min: 1, max: 10, of: &PURCHASE_UNIT }),
    optional("payment_source", &ORDER_SOURCE),
    optional("application_context", &APPLICATION_CONTEXT),
]);

/// The value of a patch of a whole purchase unit's amount.
pub(crate) static PATCHED_AMOUNT: &Rule = &AMOUNT_WITH_BREAKDOWN;
/// The value of a patch of the items.
pub(crate) static PATCHED_ITEMS: &Rule = &ITEMS;
/// The value of a patch of a text of at most 127 characters.
pub(crate) static PATCHED_TEXT: &Rule = &LINE_127;
/// The value of a patch of the intent.
pub(crate) static PATCHED_INTENT: &Rule = &INTENT;
/// The value of a patch of the soft descriptor.
pub(crate) static PATCHED_DESCRIPTOR: &Rule = &SOFT_DESCRIPTOR;
/// The value of a patch of the shipping address.
pub(crate) static PATCHED_ADDRESS: &Rule = &ADDRESS;
/// The value of a patch of the shipping name.
pub(crate) static PATCHED_NAME: &Rule = &NAME;

/// JSON Patch, as orders, trackers and webhooks take it.
pub(crate) static PATCH: Rule = Rule::List {
    min: 1,
    max: 32_767,
    of: &Rule::Object(&[
        required("op", &Rule::OneOf(&["add", "remove", "replace", "move", "copy", "test"])),
        optional("path", &text(0, 4_000, Shape::Free)),
        optional("from", &text(0, 4_000, Shape::Free)),
    ]),
};

/// `POST …/authorize` and `…/capture` of an order: everything is optional.
pub(crate) static ORDER_PAY: Rule = Rule::Object(&[optional("payment_source", &ORDER_SOURCE)]);

/// `POST …/confirm-payment-source`.
pub(crate) static ORDER_CONFIRM: Rule = Rule::Object(&[
    required("payment_source", &ORDER_SOURCE),
    optional("application_context", &APPLICATION_CONTEXT),
]);

/// `POST …/track`.
pub(crate) static TRACK: Rule = Rule::Object(&[
    required("capture_id", &text(1, 50, Shape::Id)),
    optional("tracking_number", &text(1, 64, Shape::Free)),
    optional("carrier", &text(1, 64, Shape::Code)),
    optional("notify_payer", &FLAG),
]);

/// `POST …/authorizations/{id}/capture`.
pub(crate) static CAPTURE: Rule = Rule::Object(&[
    optional("amount", &MONEY),
    optional("invoice_id", &text(1, 127, Shape::Line)),
    optional("final_capture", &FLAG),
    optional("note_to_payer", &text(1, 255, Shape::Line)),
    optional("soft_descriptor", &text(0, 22, Shape::Free)),
]);

/// `POST …/authorizations/{id}/reauthorize`.
pub(crate) static REAUTHORIZE: Rule = Rule::Object(&[optional("amount", &MONEY)]);

/// `POST …/captures/{id}/refund`.
pub(crate) static REFUND: Rule = Rule::Object(&[
    optional("amount", &MONEY),
    optional("custom_id", &text(1, 127, Shape::Line)),
    optional("invoice_id", &text(1, 127, Shape::Line)),
    optional("note_to_payer", &text(1, 255, Shape::Line)),
]);

static VAULT_CUSTOMER: Rule = Rule::Object(&[
    optional("id", &text(1, 22, Shape::Id)),
    optional("merchant_customer_id", &text(1, 64, Shape::Free)),
]);

static VAULT_EXPERIENCE: Rule = Rule::Object(&[
    optional("brand_name", &text(1, 300, Shape::Line)),
    optional("locale", &LOCALE),
    optional("return_url", &URL),
    optional("cancel_url", &URL),
    optional("shipping_preference", &CODE),
    optional("vault_instruction", &CODE),
]);

static VAULT_WALLET: Rule = Rule::Object(&[
    optional("description", &text(1, 128, Shape::WalletText)),
    optional("permit_multiple_payment_tokens", &FLAG),
    optional("usage_type", &CODE),
    optional("usage_pattern", &USAGE_PATTERN),
    optional("customer_type", &CODE),
    optional("shipping", &SHIPPING),
    optional("experience_context", &VAULT_EXPERIENCE),
]);

static VAULT_TOKEN: Rule = Rule::Object(&[
    required("id", &text(1, 255, Shape::Id)),
    required("type", &Rule::OneOf(&["BILLING_AGREEMENT", "SETUP_TOKEN"])),
]);

/// `POST /v3/vault/setup-tokens`.
pub(crate) static SETUP_TOKEN: Rule = Rule::Object(&[
    optional("customer", &VAULT_CUSTOMER),
    required(
        "payment_source",
        &Rule::Object(&[
            optional("paypal", &VAULT_WALLET),
            optional("card", &ANY_OBJECT),
            optional("venmo", &ANY_OBJECT),
            optional("token", &VAULT_TOKEN),
        ]),
    ),
]);

/// `POST /v3/vault/payment-tokens`.
pub(crate) static PAYMENT_TOKEN: Rule = Rule::Object(&[
    optional("customer", &VAULT_CUSTOMER),
    required(
        "payment_source",
        &Rule::Object(&[optional("token", &VAULT_TOKEN), optional("card", &ANY_OBJECT)]),
    ),
]);

static EVENT_TYPES: Rule = Rule::List {
    min: 1,
    max: 500,
    of: &Rule::Object(&[required("name", &text(1, 255, Shape::Free))]),
};

/// `POST /v1/notifications/webhooks`.
pub(crate) static WEBHOOK: Rule = Rule::Object(&[
    required("url", &text(1, 2_048, Shape::Free)),
    required("event_types", &EVENT_TYPES),
]);

/// `POST /v1/notifications/simulate-event`.
pub(crate) static SIMULATE_EVENT: Rule = Rule::Object(&[
    optional("webhook_id", &text(0, 50, Shape::Id)),
    optional("url", &text(0, 2_048, Shape::Free)),
    required("event_type", &text(1, 100, Shape::Free)),
]);

/// `POST /v1/notifications/verify-webhook-signature`.
pub(crate) static VERIFY_SIGNATURE: Rule = Rule::Object(&[
    required("auth_algo", &text(1, 100, Shape::Id)),
    required("cert_url", &text(1, 500, Shape::Url)),
    required("transmission_id", &text(1, 50, Shape::Free)),
    required("transmission_sig", &text(1, 500, Shape::Free)),
    required("transmission_time", &text(1, 100, Shape::Free)),
    required("webhook_id", &text(1, 50, Shape::Id)),
    required("webhook_event", &ANY_OBJECT),
]);
