//! JSON exactly as it was asked for.
//!
//! Serde alone is generous: it takes an array where a struct is described (member by position), an
//! object where a plain name is, and the last of two members with the same name. What moves money
//! is read here instead: one pass refuses members written twice and deep nesting, a second one
//! reads the value and takes only objects for structs and only texts for names.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::Deserialize as _;
use serde::de::value::StringDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, IntoDeserializer as _, MapAccess,
    SeqAccess, Visitor,
};

/// The deepest nesting.
const MAX_DEPTH: usize = 32;
/// The most members of one object.
const MAX_MEMBERS: usize = 1_000;

/// Reads one JSON value and nothing behind it.
///
/// # Errors
/// One sentence that says what is not acceptable; it names no type of this program.
pub(super) fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    if std::str::from_utf8(bytes).is_err() {
        return Err("the body is not UTF-8".to_owned());
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let walked = Walk { depth: 0 }.deserialize(&mut reader).and_then(|()| reader.end());
    walked.map_err(|why| format!("the body is not acceptable JSON: {why}"))?;
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    T::deserialize(Exact(&mut reader)).map_err(|why| format!("the body does not fit: {why}"))
}

/// The name of a member; where nothing in it is escaped, as it stands in the text.
#[derive(serde::Deserialize, PartialEq, Eq, Hash)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// Walks a JSON value and refuses members written twice and deep nesting.
struct Walk {
    depth: usize,
}

impl Walk {
    fn deeper<E: Error>(&self) -> Result<Self, E> {
        if self.depth >= MAX_DEPTH {
            return Err(E::custom("nested too deep"));
        }
        Ok(Self { depth: self.depth.saturating_add(1) })
    }
}

impl<'de> DeserializeSeed<'de> for Walk {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(self.deeper()?)?.is_some() {}
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut names = HashSet::new();
        while let Some(Name(name)) = members.next_key()? {
            if names.len() >= MAX_MEMBERS {
                return Err(A::Error::custom("more than 1000 members in one object"));
            }
            if names.contains(&name) {
                return Err(A::Error::custom(format!("member `{name}` stands twice")));
            }
            names.insert(name);
            members.next_value_seed(self.deeper()?)?;
        }
        Ok(())
    }
}

/// A deserializer, or what stands under it, that takes only objects for structs.
struct Exact<T>(T);

macro_rules! forward {
    ($($method:ident($($arg:ident: $kind:ty),*);)*) => {
        $(fn $method<V: Visitor<'de>>(self, $($arg: $kind,)* visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method($($arg,)* Exact(visitor))
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Exact<D> {
    type Error = D::Error;

    forward! {
        deserialize_any(); deserialize_bool();
        deserialize_i8(); deserialize_i16(); deserialize_i32(); deserialize_i64(); deserialize_i128();
        deserialize_u8(); deserialize_u16(); deserialize_u32(); deserialize_u64(); deserialize_u128();
        deserialize_f32(); deserialize_f64(); deserialize_char();
        deserialize_str(); deserialize_string(); deserialize_bytes(); deserialize_byte_buf();
        deserialize_option(); deserialize_unit(); deserialize_seq(); deserialize_map();
        deserialize_identifier(); deserialize_ignored_any();
        deserialize_unit_struct(name: &'static str);
        deserialize_newtype_struct(name: &'static str);
        deserialize_tuple(len: usize);
        deserialize_tuple_struct(name: &'static str, len: usize);
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(Object(visitor))
    }

    /// Names only: nothing that clients send carries data in a variant.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let name: StringDeserializer<D::Error> = String::deserialize(self.0)?.into_deserializer();
        visitor.visit_enum(name)
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

/// A struct's visitor: says *object* where serde would name a Rust type.
struct Object<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for Object<V> {
    type Value = V::Value;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Exact(members))
    }
}

macro_rules! visit {
    ($($method:ident: $kind:ty;)*) => {
        $(fn $method<E: Error>(self, value: $kind) -> Result<V::Value, E> { self.0.$method(value) })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Exact<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    visit! {
        visit_bool: bool;
        visit_i8: i8; visit_i16: i16; visit_i32: i32; visit_i64: i64; visit_i128: i128;
        visit_u8: u8; visit_u16: u16; visit_u32: u32; visit_u64: u64; visit_u128: u128;
        visit_f32: f32; visit_f64: f64; visit_char: char;
        visit_str: &str; visit_borrowed_str: &'de str; visit_string: String;
        visit_bytes: &[u8]; visit_borrowed_bytes: &'de [u8]; visit_byte_buf: Vec<u8>;
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }
    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Exact(deserializer))
    }
    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(Exact(deserializer))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(Exact(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Exact(members))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Exact<S> {
    type Value = S::Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Exact(deserializer))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Exact<A> {
    type Error = A::Error;
    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Exact(seed))
    }
    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Exact<A> {
    type Error = A::Error;
    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }
    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Exact(seed))
    }
    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use earnest_core::money::AmountInput;
    use serde_json::Value;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only read")]
    struct Wish {
        name: String,
        amount: Option<AmountInput>,
        inner: Option<Inner>,
        list: Option<Vec<Inner>>,
        fate: Option<earnest_core::voucher::Fate>,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only read")]
    struct Inner {
        count: u32,
        per_seconds: i64,
    }

    #[test]
    fn refuses_loose_json() {
        let deep = "[".repeat(40) + &"]".repeat(40);
        let deeper = "[".repeat(100_000);
        let many: Vec<String> = (0..1001).map(|n| format!("\"{n}\":0")).collect();
        let many = format!("{{{}}}", many.join(","));
        let cases: [&[u8]; 15] = [
            b"",
            b" ",
            b"{",
            br#"{"a":1,"a":2}"#,
            br#"{"a":{"b":1,"b":1}}"#,
            br#"[{"a":1},{"b":1,"b":1}]"#,
            br#"{"a":1,"\u0061":2}"#,
            b"{} {}",
            b"{}\0",
            b"\xef\xbb\xbf{}",
            b"\xff\xfe",
            br#""\ud800""#,
            deep.as_bytes(),
            deeper.as_bytes(),
            many.as_bytes(),
        ];
        for bytes in cases {
            let read = from_slice::<Value>(bytes);
            assert!(read.is_err(), "{:?}", &bytes[..bytes.len().min(20)]);
        }
        assert!(from_slice::<Value>(br#"{"a":[1,{"b":null}],"c":"x"} "#).is_ok());
    }

    #[test]
    fn takes_only_objects_for_structs_and_only_texts_for_names() {
        let good = br#"{"name":"a","amount":"$0.02","inner":{"count":1,"per_seconds":2},
            "list":[{"count":1,"per_seconds":2}],"fate":"failed"}"#;
        from_slice::<Wish>(good).unwrap();
        from_slice::<Wish>(br#"{"name":"a","amount":null,"inner":null}"#).unwrap();
        for bad in [
            r#"["a"]"#,
            r#"["a",null,null,null,null]"#,
            r#"{"name":"a","inner":[1,2]}"#,
            r#"{"name":"a","list":[[1,2]]}"#,
            r#"{"name":"a","fate":{"failed":null}}"#,
            r#"{"name":"a","fate":0}"#,
            r#"{"name":["a"]}"#,
            r#"{"name":"a","more":1}"#,
            "null",
            "1",
        ] {
            let why = from_slice::<Wish>(bad.as_bytes()).unwrap_err();
            assert!(!why.contains("struct "), "{why}");
        }
    }
}
