//! Objects, where JSON stands for messages.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// An object and nothing else: a derived struct would also take an array of its fields' values.
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

/// Several, or `null` for none.
pub(super) fn messages<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let messages = Option::<Vec<Message<T>>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(messages.into_iter().map(|message| message.0).collect())
}

/// One, or `null` for none.
pub(super) fn maybe_message<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Ok(Option::<Message<T>>::deserialize(deserializer)?.map(|message| message.0))
}
