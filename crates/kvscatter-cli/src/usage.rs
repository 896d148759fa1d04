//! Explains arguments that cannot be parsed, and what the user most likely meant.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The options whose value is a list. The first text is the name of the value in the help, and the second is
/// what the list contains.
const LISTS: [(&str, &str); 7] = [
    ("INDICES", "indices"),
    ("INDEX", "indices"),
    ("STARTS", "indices"),
    ("SHAPE", "dimensions"),
    ("SHAPE|FILE", "dimensions"),
    ("ID,...", "token ids"),
    ("N,...", "numbers"),
];

/// Arguments that were refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UsageError {
    pub(crate) message: String,
    /// The wrong argument, as the help shows it.
    pub(crate) argument: Option<String>,
    pub(crate) value: Option<String>,
    pub(crate) hint: Option<String>,
}

impl UsageError {
    /// Reads clap's error about `arguments` of `command`.
    pub(crate) fn new(error: &clap::Error, command: &clap::Command, arguments: &[OsString]) -> Self {
        let text = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.clone()),
            _ => None,
        };
        let (argument, value) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue));
        let words: Vec<_> = arguments.iter().filter_map(|word| word.to_str()).collect();
        let list = match error.kind() {
            ErrorKind::UnknownArgument
                if argument.as_deref().is_some_and(|argument| !argument.starts_with("--")) =>
            {
                SplitList::find(command, &words, None)
            }
            ErrorKind::ValueValidation => {
                let option = argument.as_deref().and_then(|argument| argument.split(' ').next());
                option.and_then(|option| SplitList::find(command, &words, Some(option)))
            }
            _ => None,
        };
        let is_shape = || value.as_deref().is_some_and(|value| is_part(value, "indices"));
        let hint = match list {
            Some(list) => Some(list.hint()),
            // Another command takes shapes as well.
            None if words.get(1) == Some(&"apply") && is_file(argument.as_deref()) && is_shape() => {
                Some("kvscatter apply takes a file here, kvscatter plan also takes a shape".to_owned())
            }
            None => None,
        };
        let mut message = one_sentence(error);
        if let Some(hint) = &hint {
            // The advice of clap is about the word and not about the list.
            let (problem, _) = message.split_once("; tip:").unwrap_or((&message, ""));
            message = format!("{problem}; {hint}");
        }
        Self { message: format!("{message} (see --help)"), argument, value, hint }
    }
}

/// Returns whether an argument takes only a file, by the name of its value in the help.
fn is_file(argument: Option<&str>) -> bool {
    argument.is_some_and(|argument| argument.ends_with(" <FILE>"))
}

/// Returns the message of clap as one line, with the problem and the possible values.
fn one_sentence(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "a command is missing".to_owned();
    }
    let text = error.render().to_string();
    let lines: Vec<_> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .filter(|line| !line.is_empty())
        .collect();
    let message = lines.join(" ").replace(" tip:", "; tip:");
    message.strip_prefix("error: ").unwrap_or(&message).to_owned()
}

/// A list whose numbers are not separated only by commas.
struct SplitList<'a> {
    option: &'a str,
    /// What the list has.
    of: &'static str,
    numbers: Vec<&'a str>,
}

impl<'a> SplitList<'a> {
    /// Finds the first such list after an option that takes a list, or after the option with this first name.
    fn find(command: &clap::Command, words: &[&'a str], named: Option<&str>) -> Option<Self> {
        let lists = list_options(command, words);
        words.iter().enumerate().find_map(|(at, word)| {
            let (option, first) = match word.split_once('=') {
                Some((option, value)) => (option, Some(value)),
                None => (*word, None),
            };
            let ListOption { first_name, of, .. } = lists.iter().find(|list| list.name == option)?;
            if named.is_some_and(|named| named != first_name) {
                return None;
            }
            let rest = words.get(at.checked_add(1)?..)?.iter().copied();
            let values: Vec<_> = first.into_iter().chain(rest).take_while(|word| is_part(word, of)).collect();
            let numbers: Vec<_> = values
                .iter()
                .flat_map(|value| value.split(|c: char| c != '-' && !c.is_ascii_digit()))
                .filter(|number| !number.is_empty())
                .collect();
            // If the only separators of a word are commas, something else is wrong with it.
            let has_commas = |word: &&str| word.chars().all(|c| c == ',' || c == '-' || c.is_ascii_digit());
            let is_split = match values.as_slice() {
                [] => false,
                [word] => !has_commas(word),
                _ => true,
            };
            is_split.then_some(Self { option, of, numbers })
        })
    }

    fn hint(&self) -> String {
        let Self { option, of, numbers } = self;
        format!("separate {of} by commas: {option} {}", numbers.join(","))
    }
}

/// Returns whether a word can be a part of a list, with numbers and common separators and brackets. A shape
/// may also be `2x4x1`.
fn is_part(word: &str, of: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_listed = |c: char| c.is_ascii_digit() || ",;-[]() ".contains(c);
    let is_list = word.contains(|c: char| c.is_ascii_digit()) && word.chars().all(is_listed);
    is_list || of == "dimensions" && word.split('x').all(is_number)
}

/// A name of an option that takes a list.
struct ListOption {
    name: String,
    /// The name in errors. The other names are aliases.
    first_name: String,
    /// What the list has.
    of: &'static str,
}

/// Returns the options that take a list in the subcommand that the words name.
fn list_options(command: &clap::Command, words: &[&str]) -> Vec<ListOption> {
    let named = words.iter().fold(command, |command, word| command.find_subcommand(word).unwrap_or(command));
    let list = |arg: &clap::Arg| {
        let value = arg.get_value_names()?.first()?;
        let (_, of) = *LISTS.iter().find(|(name, _)| *name == value.as_str())?;
        let first_name = format!("--{}", arg.get_long()?);
        let names = arg.get_long_and_visible_aliases()?.into_iter();
        let option = |name| ListOption { name: format!("--{name}"), first_name: first_name.clone(), of };
        Some(names.map(option).collect::<Vec<_>>())
    };
    named.get_arguments().filter_map(list).flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::{Arg, Command};

    use super::UsageError;

    fn refused(line: &str) -> UsageError {
        let indices = Arg::new("at").long("write-indices").visible_alias("at").value_name("INDICES");
        let indices = indices.allow_hyphen_values(true).value_parser(|text: &str| {
            let numbers = text.split(',').map(str::parse::<i64>);
            numbers.collect::<Result<Vec<_>, _>>()
        });
        let file = Arg::new("file").long("file").value_name("FILE");
        let mut command = Command::new("k").subcommand(Command::new("plan").arg(indices).arg(file));
        let arguments: Vec<_> = line.split('_').map(OsString::from).collect();
        let error = command.try_get_matches_from_mut(&arguments).unwrap_err();
        UsageError::new(&error, &command, &arguments)
    }

    #[test]
    fn lists_get_a_hint() {
        for (line, hint) in [
            ("k_plan_--write-indices_3_0_7", "--write-indices 3,0,7"),
            ("k_plan_--at_3_0_--file_f", "--at 3,0"),
            ("k_plan_--at_3;0", "--at 3,0"),
            ("k_plan_--write-indices=3_-1", "--write-indices 3,-1"),
            ("k_plan_--write-indices_-1_7", "--write-indices -1,7"),
            ("k_plan_--write-indices_3,_0,_7", "--write-indices 3,0,7"),
            ("k_plan_--write-indices_3;0", "--write-indices 3,0"),
            ("k_plan_--write-indices_3 0", "--write-indices 3,0"),
            ("k_plan_--write-indices_[3, 0]", "--write-indices 3,0"),
        ] {
            let refused = refused(line);
            assert_eq!(refused.hint, Some(format!("separate indices by commas: {hint}")), "{line}");
            assert!(refused.message.ends_with(&format!("commas: {hint} (see --help)")), "{refused:?}");
        }
        for line in [
            "k_plan_--file_3_0",
            "k_plan_--write-indices_x",
            "k_plan_--write-indices_3_--no",
            "k_plan_--write-indices_99999999999999999999",
            "k_plan_--write-indices_3,,0",
            "k_plan_--write-indices_3x0",
            "k_plan_x_--write-indices_3",
        ] {
            assert_eq!(refused(line).hint, None, "{line}");
        }
    }

    #[test]
    fn argument_and_value_are_fields() {
        let UsageError { argument, value, .. } = refused("k_plan_--write-indices_3;0");
        assert_eq!(argument.as_deref(), Some("--write-indices <INDICES>"));
        assert_eq!(value.as_deref(), Some("3;0"));
    }
}
