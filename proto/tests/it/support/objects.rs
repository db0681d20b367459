//! A value of every wire type with random fields: well-formed, seldom meaningful.

use baton_keys::{SecretSigningKey, exchange::SUITE};
use baton_proto::{
    Signable, SignedObject,
    embed::{EmbedAuth, EmbedReply},
    export::ExportStatement,
    head::HeadRecord,
    limits::MAX_CHECKS,
    link::Link,
    memory::{MemEnvelope, RecallHint},
    node_record::NodeRecord,
    note::TurnNote,
    receipt::{ProgressNote, Receipt},
    right::{QuotaProof, Right},
    turn::TurnAuth,
};
use serde::{
    Deserializer,
    de::{
        DeserializeOwned, DeserializeSeed, EnumAccess, Error as _, IntoDeserializer as _, SeqAccess,
        VariantAccess, Visitor,
        value::{Error, U64Deserializer},
    },
};

use super::source::Source;

/// A type with a random value: the type asks for its fields as from an encoding, and random ones come.
pub(crate) trait RandomValue: DeserializeOwned {
    fn random(source: &mut Source) -> Self {
        // Some numbers are no value, such as those of unknown error codes.
        let mut tries = (0..10_000).map(|_| Self::deserialize(RandomInput(source)));
        tries.find_map(Result::ok).expect("a wire type has values")
    }
}

impl<T: DeserializeOwned> RandomValue for T {}

struct RandomInput<'a>(&'a mut Source);

macro_rules! random_numbers {
    ($($method:ident: $name:ident, $visit:ident;)*) => { $(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            let number = $name::from_le_bytes(self.0.bytes());
            // Half of the values are extremes and small numbers: limits and wrap-around hide there.
            visitor.$visit(match self.0.below(4) {
                0 => $name::MAX.wrapping_sub(number % 3),
                1 => number % 20,
                _ => number,
            })
        }
    )* };
}

impl<'de> Deserializer<'de> for RandomInput<'_> {
    type Error = Error;

    random_numbers! {
        deserialize_u8: u8, visit_u8;
        deserialize_u16: u16, visit_u16;
        deserialize_u32: u32, visit_u32;
        deserialize_u64: u64, visit_u64;
        deserialize_i32: i32, visit_i32;
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("no wire type has such a field"))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(self.0.coin())
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let values = [0.0, -0.0, 0.7, 1.0, 5.0, 1e30, f32::MIN_POSITIVE, f32::INFINITY];
        visitor.visit_f32(values[self.0.below(values.len())])
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let length = self.0.below(40);
        visitor.visit_string(self.0.text(length))
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let length = self.0.below(5);
        visitor.visit_byte_buf(self.0.vec(length))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.0.coin() { visitor.visit_some(self) } else { visitor.visit_none() }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let length = self.0.below(5);
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(RandomItems { source: self.0, left: length })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_tuple(fields.len(), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_enum(RandomItems { left: self.0.below(variants.len()), source: self.0 })
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i64 f64 char str bytes unit unit_struct tuple_struct map identifier ignored_any
    }
}

/// The items of a list of `left` items, or the variant of that number.
struct RandomItems<'a> {
    source: &'a mut Source,
    left: usize,
}

impl<'de> SeqAccess<'de> for RandomItems<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(RandomInput(self.source)).map(Some)
    }
}

impl<'de, 'a> EnumAccess<'de> for RandomItems<'a> {
    type Error = Error;
    type Variant = RandomInput<'a>;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self::Variant), Error> {
        let variant: U64Deserializer<Error> = (self.left as u64).into_deserializer();
        Ok((seed.deserialize(variant)?, RandomInput(self.source)))
    }
}

impl<'de> VariantAccess<'de> for RandomInput<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_tuple(length, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_tuple(fields.len(), visitor)
    }
}

/// A signed type with a settable signer, so that its own checks are reached.
pub(crate) trait SettableSigner: Signable + RandomValue {
    fn set_signer(&mut self, key: &SecretSigningKey);
}

macro_rules! settable_signers {
    ($($name:ident: |$value:ident, $key:ident| $body:block)*) => { $(impl SettableSigner for $name {
        fn set_signer(&mut self, $key: &SecretSigningKey) {
            let $value = self;
            $value.version = <$name as Signable>::VERSION;
            $body
        }
    })* };
}
settable_signers! {
    Link: |link, key| { link.author = key.node_id(); }
    Receipt: |receipt, key| { receipt.node = key.node_id(); }
    ProgressNote: |note, key| { note.node = key.node_id(); }
    NodeRecord: |record, key| { record.node = key.node_id(); }
    HeadRecord: |record, key| { record.head_key = key.public_key(); }
    MemEnvelope: |envelope, key| { envelope.relayer = key.public_key(); }
    RecallHint: |hint, key| { hint.key = key.public_key(); }
    Right: |right, key| { right.grantor = key.public_key(); }
    QuotaProof: |proof, key| { proof.holder = key.public_key(); }
    EmbedAuth: |auth, key| { auth.suite = SUITE; auth.client_key = key.public_key(); }
    EmbedReply: |reply, key| {
        reply.node = key.node_id();
        reply.dimensions = 2;
        reply.tokens.resize(3, 7);
        reply.components = vec![0.5; 6];
    }
    TurnAuth: |auth, key| {
        auth.suite = SUITE;
        auth.session_key = key.public_key();
        auth.session_id = baton_keys::session::session_id(&auth.session_key);
        auth.checks.truncate(MAX_CHECKS);
    }
    TurnNote: |note, key| {
        note.session_key = key.public_key();
        note.session_id = baton_keys::session::session_id(&note.session_key);
    }
    ExportStatement: |statement, key| {
        statement.session_key = key.public_key();
        statement.session_id = baton_keys::session::session_id(&statement.session_key);
    }
}

/// An object that its own signer signed; all other fields are arbitrary.
pub(crate) fn signed<T: SettableSigner>(source: &mut Source, key: &SecretSigningKey) -> SignedObject<T> {
    let mut value = T::random(source);
    value.set_signer(key);
    SignedObject::sign(value, key)
}
