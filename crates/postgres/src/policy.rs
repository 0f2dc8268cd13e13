//! The audit and durability policies. They define the data that is stored in the clear, and the guarantee for a stored packet.

use std::fmt;
use std::str::FromStr;

/// The columns that every role with access to the tables can read. It is part of the signed epoch record.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Audit {
    /// All data: the header columns and the packet itself in `payload`, with authentication.
    Full,
    /// The header columns. The packet is sealed.
    #[default]
    Headers,
    /// The time, the length, and the two nodes. The packet is sealed.
    Metadata,
    /// The time and the two nodes. The packet is sealed and padded to [`crate::limits::PADDING`].
    None,
}

/// The guarantee that holds for a packet when its peer can read it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// The packet is committed and flushed.
    #[default]
    Strict,
    /// The packet is committed, and flushed within fractions of a second (`synchronous_commit` off).
    Relaxed,
    /// The packet is committed, in tables that a crash of the database empties (`UNLOGGED`).
    Volatile,
}

/// The error for a word that is not the name of a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is none of: {known}")]
pub struct UnknownPolicy {
    word: String,
    known: String,
}

macro_rules! words {
    ($name:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        impl $name {
            /// All policies of this kind.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the policy's name in the configuration and in the database.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownPolicy;

            fn from_str(word: &str) -> Result<Self, UnknownPolicy> {
                match word {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(UnknownPolicy { word: word.into(), known: [$($word),+].join(", ") }),
                }
            }
        }
    };
}

words! { Audit { Full = "full", Headers = "headers", Metadata = "metadata", None = "none" } }
words! { Durability { Strict = "strict", Relaxed = "relaxed", Volatile = "volatile" } }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_parses_back_and_others_are_refused_with_the_known_ones() {
        for audit in Audit::ALL {
            assert_eq!(audit.as_str().parse(), Ok(*audit));
        }
        for durability in Durability::ALL {
            assert_eq!(durability.as_str().parse(), Ok(*durability));
        }
        let error = "paranoid".parse::<Durability>().unwrap_err().to_string();
        assert_eq!(error, "\"paranoid\" is none of: strict, relaxed, volatile");
    }
}
