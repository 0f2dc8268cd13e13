//! Definitions in a rule file for settings that nftables' language cannot express: `define adit_flows = 500000`. `nft`
//! treats them as unused definitions.

use std::rc::Rc;

use super::hooks::ALLOW_UNHOOKED;
use super::lex::{Span, SyntaxError, Tok, Token};
use crate::ruleset::FlowLimits;

/// The prefix of the names of these definitions; unknown names with it are refused.
pub(super) const PREFIX: &str = "adit_";

const FLOWS: &str = "adit_flows";
const PER_SOURCE: &str = "adit_flows_per_source";
const UNANSWERED: &str = "adit_unanswered_per_source";

/// The maximum number of flows that a file may request: about 3 GiB.
pub const MAX_FLOWS: u32 = 1 << 24;

/// The settings of a file.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Settings {
    pub allow_unhooked: bool,
    pub limits: FlowLimits,
}

/// Reads the definitions outside all blocks whose names begin with [`PREFIX`].
pub(super) fn read(
    definitions: impl Iterator<Item = (Rc<str>, Rc<[Token]>)>,
    errors: &mut Vec<SyntaxError>,
) -> Settings {
    let mut settings = Settings::default();
    for (name, value) in definitions {
        let start = Span { file: 0, line: 1, column: 1, length: 1 };
        let at = value.first().map_or(start, |token| token.at);
        let number = match &*value {
            [Token { tok: Tok::Number(number), .. }] => number.parse::<u32>().ok(),
            _ => None,
        };
        let Settings { allow_unhooked, limits } = &mut settings;
        let limit = match &*name {
            ALLOW_UNHOOKED => {
                match number {
                    Some(number @ 0..=1) => *allow_unhooked = number == 1,
                    _ => {
                        let error = SyntaxError::new(at, format!("`{name}` is 1 or 0"));
                        errors.push(error.hint(format!("define {name} = 1")));
                    }
                }
                continue;
            }
            FLOWS => &mut limits.flows,
            PER_SOURCE => &mut limits.per_source,
            UNANSWERED => &mut limits.unanswered_per_source,
            _ => {
                let known = [ALLOW_UNHOOKED, FLOWS, PER_SOURCE, UNANSWERED].join("`, `");
                let error = SyntaxError::new(at, format!("`{name}` is not a setting of adit's"));
                errors.push(error.hint(format!("a name without `{PREFIX}`, or one of `{known}`")));
                continue;
            }
        };
        match number {
            Some(number @ 1..=MAX_FLOWS) => *limit = Some(number),
            _ => {
                let error =
                    SyntaxError::new(at, format!("`{name}` is a number from 1 to {MAX_FLOWS}"));
                errors.push(error.hint(format!("define {name} = 100000")));
            }
        }
    }
    settings
}

/// Returns the definitions of a file with these settings.
pub(super) fn lines(allow_unhooked: bool, limits: &FlowLimits) -> impl Iterator<Item = String> {
    let FlowLimits { flows, per_source, unanswered_per_source } = *limits;
    [
        (ALLOW_UNHOOKED, allow_unhooked.then_some(1)),
        (FLOWS, flows),
        (PER_SOURCE, per_source),
        (UNANSWERED, unanswered_per_source),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some(format!("define {name} = {}", value?)))
}
