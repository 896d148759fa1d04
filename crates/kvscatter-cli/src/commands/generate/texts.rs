//! Generates texts after prompts that are texts.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::Path;

use kvscatter_onnx::Model;
use kvscatter_onnx::decoder::Decoder;
use kvscatter_onnx::source::{DEFAULT_MAX_SEQ, ModelSource};
use kvscatter_session::Interface;
use kvscatter_text::names::one_line;

use super::args::{Generate, check_eos};
use super::chat;
use super::show::Texts;
use super::texter::{Texter, Turns, check_length, system};
use super::writer::print;
use crate::error::CommandError;
use crate::interrupt::Interrupts;
use crate::output::{Outcome, Output};
use crate::text::{ChatTemplate, Config, Message, ModelFiles, Role, TextError, Tokenizer};

/// The most characters of a prompt that the heading of its text shows.
const HEADING: usize = 60;

pub(super) fn run(args: &Generate, output: &mut Output) -> Result<Outcome, CommandError> {
    let source = ModelSource::find(&args.model)?;
    let files = ModelFiles::new(source.folder.clone());
    let config = Config::read(&files)?;
    let tokenizer = Tokenizer::read(&files, &config)?;
    let template = if args.prompts.is_chat() { Some(config.chat_template(&files)?) } else { None };
    let texts = args.prompts.texts()?;
    if let Some(template) = template.as_ref().filter(|_| texts.is_empty()) {
        template.check()?;
    }
    let prompts = encoded(args, &tokenizer, template.as_ref(), &texts)?;
    let engine = args.open_engine()?;
    let prepared = args.preparing.prepare(source, output)?;
    let sizes = Sizes::of(&prepared.model)?;
    let eos = match args.eos.as_slice() {
        [] => config.end_tokens(&files, |token| tokenizer.id(token), sizes.vocabulary)?,
        given => given.to_vec(),
    };
    check_eos(&eos, sizes.vocabulary)?;
    if let Some(vocabulary) = sizes.vocabulary {
        tokenizer.check_vocabulary(vocabulary)?;
    }
    let capacity = args.capacity().or(sizes.default_capacity(args.max_new_tokens));
    let room = sizes.capacity.or(capacity);
    for (prompt, tokens) in prompts.iter().enumerate() {
        check_length(args, &args.prompts.name(prompt), tokens, room)?;
    }
    let options = args.options(args.max_new_tokens.map(NonZeroUsize::get), eos);
    let loaded = if prompts.is_empty() { &[Vec::new()] } else { prompts.as_slice() };
    let generator = args.open_generator(&*engine, &prepared, loaded, &options, capacity)?;
    let mut texter = Texter { args, tokenizer: &tokenizer, generator, options, room };
    match template {
        Some(template) if texts.is_empty() => {
            let turns = chat::run(&mut texter, &template, output)?;
            texter.show(&*engine, turns, output)?;
        }
        _ => {
            let interrupts = Interrupts::catch();
            let (generated, samples) = texter.generate(&prompts, &interrupts, output)?;
            if samples.len() > 1 && !output.is_json() {
                print_all(&texts, &samples, output)?;
            }
            let turns =
                Turns { ids: prompts, texts: Texts { prompts: texts, samples }, generated: Some(generated) };
            texter.show(&*engine, turns, output)?;
            interrupts.end();
        }
    }
    Ok(Outcome::Passed)
}

/// Returns the tokens of the prompts, after the chat template if there is one.
fn encoded(
    args: &Generate,
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    texts: &[String],
) -> Result<Vec<Vec<i64>>, CommandError> {
    let encode = |text: &String| match template {
        Some(template) => {
            let user = Message { role: Role::User, content: text.clone() };
            let chat: Vec<_> = system(args).into_iter().chain([user]).collect();
            tokenizer.encode_template(&template.apply(&chat)?)
        }
        // The saved tokens begin the text.
        None if args.prefix.is_some() => tokenizer.encode_template(text),
        None => tokenizer.encode(text),
    };
    let mut prompts = Vec::with_capacity(texts.len());
    for (prompt, text) in texts.iter().enumerate() {
        let tokens = encode(text)?;
        if tokens.is_empty() {
            return Err(TextError::PromptEmpty { what: args.prompts.name(prompt) }.into());
        }
        prompts.push(tokens);
    }
    Ok(prompts)
}

/// The sizes that a model declares. They are read before an engine loads the weights.
struct Sizes {
    vocabulary: Option<usize>,
    capacity: Option<usize>,
    /// The most tokens of a sample.
    most_tokens: Option<usize>,
    grows: bool,
}

impl Sizes {
    fn of(path: &Path) -> Result<Self, CommandError> {
        let model = Model::load(path)?;
        let graph = model.graph()?;
        let interface = Interface::of(&model, &Decoder::of(&graph)?)?;
        Ok(Self {
            vocabulary: interface.vocabulary,
            capacity: interface.capacity()?,
            most_tokens: interface.most_tokens,
            grows: interface.is_copied(),
        })
    }

    /// Returns the slots of each sample if neither the model nor the arguments say how many are needed.
    fn default_capacity(&self, tokens: Option<NonZeroUsize>) -> Option<usize> {
        let is_open = self.capacity.is_none() && !self.grows && tokens.is_none();
        is_open.then(|| self.most_tokens.map_or(DEFAULT_MAX_SEQ, |most| most.min(DEFAULT_MAX_SEQ)))
    }
}

/// Prints each text under a heading.
fn print_all(prompts: &[String], texts: &[String], output: &mut Output) -> Result<(), CommandError> {
    for (number, (prompt, text)) in prompts.iter().zip(texts).enumerate() {
        let line = one_line(prompt);
        let (shown, more) = match line.char_indices().nth(HEADING) {
            None => (line.as_str(), ""),
            Some((end, _)) => (line.get(..end).unwrap_or_default(), "..."),
        };
        let before = if number == 0 { "" } else { "\n" };
        writeln!(output, "{before}--- {}: {shown}{more}", number.saturating_add(1))?;
        print(output, text)?;
        writeln!(output)?;
    }
    Ok(())
}
