//! Closed lists of names: an enum whose members have one spelling in JSON, SQL and text.

/// Defines the enum, `ALL`, `name()` and serde by name. Members are written `Variant "name": "what it means",`.
macro_rules! closed_list {
    ($(#[$meta:meta])* $list:ident { $($variant:ident $name:literal: $doc:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $list {
            $(#[doc = $doc] #[serde(rename = $name)] $variant,)*
        }

        impl $list {
            /// Every member with its name, in order.
            pub const ALL: &[(&'static str, Self)] = &[$(($name, Self::$variant),)*];

            /// The name, as JSON and SQL have it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}
