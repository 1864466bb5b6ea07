//! Deserialization of messages from JSON objects.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Message that accepts only a JSON object. A derived struct also accepts an array of the values of its fields.
#[derive(Debug)]
pub(crate) struct Message<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Message<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MessageVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for MessageVisitor<T> {
            type Value = Message<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Message<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Message)
            }
        }

        deserializer.deserialize_map(MessageVisitor(PhantomData))
    }
}

/// Deserializes a list of messages, or `null` as an empty list.
pub(super) fn messages<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let messages = Option::<Vec<Message<T>>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(messages.into_iter().map(|message| message.0).collect())
}

/// Deserializes a message, or `null` as `None`.
pub(super) fn optional_message<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Ok(Option::<Message<T>>::deserialize(deserializer)?.map(|message| message.0))
}
