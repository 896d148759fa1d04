//! Generates texts after prompts that are texts.

use std::num::NonZeroUsize;
use std::path::Path;

use kvscatter_onnx::Model;
use kvscatter_onnx::decoder::Decoder;
use kvscatter_onnx::source::{ModelSource, Preparation, default_max_seq};
use kvscatter_session::{Interface, saved_tokens};

use super::args::{Generate, check_eos};
use super::chat;
use super::show::Texts;
use super::texter::{Room, Texter, Turns, system};
use crate::engines;
use crate::error::CommandError;
use crate::host::Host;
use crate::interrupt::Interrupts;
use crate::output::{Outcome, Output};
use crate::text::{ChatTemplate, Config, Message, ModelFiles, Role, TextError, Tokenizer};

pub(super) fn run(args: &Generate, host: &Host, output: &mut Output) -> Result<Outcome, CommandError> {
    let source = ModelSource::find(&args.model)?;
    let files = ModelFiles { folder: source.folder.clone() };
    let config = Config::read(&files)?;
    let tokenizer = Tokenizer::read(&files, &config)?;
    let template = if args.prompts.is_chat() { Some(config.chat_template(&files, host)?) } else { None };
    let texts = args.prompts.texts()?;
    if let Some(template) = template.as_ref().filter(|_| texts.is_empty()) {
        template.check()?;
    }
    let prompts = encoded(args, &tokenizer, template.as_ref(), &texts)?;
    let engine = engines::open(args.engine(host), &args.ort, host)?;
    let prepared = args.preparing.prepare(source, args.engine(host), output)?;
    let sizes = Sizes::read(&prepared.model)?;
    let eos = match args.eos.as_slice() {
        [] => config.end_tokens(&files, |token| tokenizer.id(token), sizes.vocabulary)?,
        given => given.to_vec(),
    };
    check_eos(&eos, sizes.vocabulary)?;
    if let Some(vocabulary) = sizes.vocabulary {
        tokenizer.check_vocabulary(vocabulary)?;
    }
    let capacity = match args.capacity() {
        // The texts of a chat that reads its turns may have any length.
        None if sizes.is_open() && (args.max_new_tokens.is_none() || prompts.is_empty()) => {
            let default = default_max_seq(&files.folder)?;
            Some(sizes.most_tokens.map_or(default, |most| most.min(default)))
        }
        given => given,
    };
    let room = Room {
        slots: sizes.capacity.or(capacity),
        prefix: args.prefix.as_deref().map(saved_tokens).transpose()?.map_or(0, |tokens| tokens.len()),
        sized_by: match prepared.what {
            Preparation::AsItIs if sizes.is_open() => " (--capacity)",
            Preparation::AsItIs => "",
            Preparation::Converted { .. } | Preparation::Reused { .. } => " (--max-seq)",
        },
    };
    for (prompt, tokens) in prompts.iter().enumerate() {
        room.check(&args.prompts.name(prompt), tokens)?;
    }
    let options = args.options(args.max_new_tokens.map(NonZeroUsize::get), eos);
    let loaded = if prompts.is_empty() { &[Vec::new()] } else { prompts.as_slice() };
    let (mut generator, encoded) = args.open_generator(&*engine, &prepared, loaded, &options, capacity)?;
    generator.fill_cache();
    let mut texter = Texter { args, tokenizer: &tokenizer, generator, encoded, options, room };
    match template {
        Some(template) if texts.is_empty() => {
            let mut turns = Turns::default();
            let ended = chat::run(&mut texter, &template, &mut turns, output);
            texter.show(&*engine, turns, output)?;
            ended?;
        }
        _ => {
            let interrupts = Interrupts::catch();
            let (generated, samples) = texter.generate(&prompts, &texts, &interrupts, output)?;
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
    fn read(path: &Path) -> Result<Self, CommandError> {
        let model = Model::load(path)?;
        let graph = model.graph()?;
        let interface = Interface::new(&model, &Decoder::from_graph(&graph)?)?;
        Ok(Self {
            vocabulary: interface.vocabulary,
            capacity: interface.capacity()?,
            most_tokens: interface.most_tokens,
            grows: interface.is_copied(),
        })
    }

    /// Returns whether the model leaves the slots of each sample open.
    fn is_open(&self) -> bool {
        self.capacity.is_none() && !self.grows
    }
}
