//! Changes of any field of any message.

use std::collections::{BTreeMap, BTreeSet};

use super::dice::Dice;
use super::tree::{Field, Message, Rule, Value};
use super::{Change, words};

pub(super) const ALL: &[Change<Message>] = &[
    ("a field less", 2, less),
    ("a list less", 1, list_less),
    ("a field again", 2, again),
    ("fields in another order", 1, swap),
    ("another value", 5, value),
    ("another value everywhere", 2, everywhere),
    ("a field of another message", 2, transplant),
    ("a new field", 3, add),
    ("nested types", 1, nested_types),
];

/// The texts of a model. Names of values are in one list.
struct Texts(BTreeMap<&'static str, Vec<Vec<u8>>>);

impl Texts {
    fn collect(root: &Message) -> Self {
        let mut texts: BTreeMap<_, Vec<_>> = BTreeMap::new();
        root.visit(&mut |message| {
            for Field { rule, value } in &message.fields {
                if let ("text", Value::Bytes(text)) = (rule.ty, value) {
                    texts.entry(list(message.kind.name, rule)).or_default().push(text.clone());
                }
            }
        });
        Self(texts)
    }

    /// Returns a text for a field: one of the model, or one that means something.
    fn any(&self, dice: &mut Dice, kind: &'static str, rule: &'static Rule) -> Vec<u8> {
        match self.0.get(list(kind, rule)) {
            Some(known) if dice.chance(60) => dice.pick(known).clone(),
            _ => words::text(dice, kind, rule.name).into_bytes(),
        }
    }
}

/// Returns the list of a text.
fn list(kind: &'static str, rule: &'static Rule) -> &'static str {
    match (kind, rule.name) {
        ("Value" | "Tensor", "name") | ("Node" | "Function", "input" | "output") => "value",
        _ => rule.name,
    }
}

/// Chooses a kind of message that the model has, and then a message of this kind that has fields.
fn message<'m>(dice: &mut Dice, root: &'m mut Message) -> Option<&'m mut Message> {
    let mut kinds = BTreeSet::new();
    root.visit(&mut |message| kinds.extend([message.kind.name]));
    let name = *dice.pick(&Vec::from_iter(kinds));
    let found = root.any_mut(dice, name)?;
    (!found.fields.is_empty()).then_some(found)
}

fn less(dice: &mut Dice, root: &mut Message) {
    let Some(message) = message(dice, root) else { return };
    message.fields.remove(dice.below(message.fields.len()));
}

fn list_less(dice: &mut Dice, root: &mut Message) {
    let Some(message) = message(dice, root) else { return };
    let name = dice.pick(&message.fields).rule.name;
    message.clear(name);
}

fn again(dice: &mut Dice, root: &mut Message) {
    let Some(message) = message(dice, root) else { return };
    let field = dice.pick(&message.fields).clone();
    let is_large = matches!(&field.value, Value::Message(inner) if inner.fields.len() > 8);
    let count = if is_large { 1 } else { *dice.pick(&[1, 1, 1, 2, 9, 65, 1000, 5000]) };
    let at = dice.below(message.fields.len() + 1);
    message.fields.splice(at..at, std::iter::repeat_n(field, count));
}

/// Exchanges two fields of the same name, which are neighbours in most cases.
fn swap(dice: &mut Dice, root: &mut Message) {
    let Some(message) = message(dice, root) else { return };
    let name = dice.pick(&message.fields).rule.name;
    let places = message.places(name);
    let at = dice.below(places.len());
    let other = if dice.chance(60) { (at + 1) % places.len() } else { dice.below(places.len()) };
    message.fields.swap(places[at], places[other]);
}

/// Returns another value of a field without messages.
fn other(dice: &mut Dice, texts: &Texts, kind: &'static str, rule: &'static Rule, old: &Value) -> Value {
    match old {
        Value::Int(_) => Value::Int(words::int(dice, rule.name)),
        Value::Float(_) => Value::Float(words::float(dice)),
        Value::Double(_) => Value::Double(words::float(dice).into()),
        Value::Bytes(_) if rule.ty == "text" => Value::Bytes(texts.any(dice, kind, rule)),
        Value::Bytes(bytes) => Value::Bytes(other_bytes(dice, bytes.clone())),
        Value::Message(message) => Value::Message(message.clone()),
    }
}

/// Replaces a number in the values of a tensor, or changes their length.
fn other_bytes(dice: &mut Dice, mut bytes: Vec<u8>) -> Vec<u8> {
    let number = match dice.below(8) {
        0 => {
            bytes.truncate(dice.below(bytes.len() + 1));
            return bytes;
        }
        1 => {
            bytes.resize(bytes.len() + *dice.pick(&[1, 4, 8, 1000]), 0xA5);
            return bytes;
        }
        2..=4 => words::float(dice).to_le_bytes().to_vec(),
        _ => words::int(dice, "dims").to_le_bytes().to_vec(),
    };
    let at = dice.below(bytes.len() / number.len()) * number.len();
    if let Some(place) = bytes.get_mut(at..at + number.len()) {
        place.copy_from_slice(&number);
    }
    bytes
}

/// Chooses a message and the place of a number or text in it.
fn leaf<'m>(dice: &mut Dice, root: &'m mut Message) -> Option<(&'m mut Message, usize)> {
    let message = message(dice, root)?;
    let is_leaf = |at: &usize| !matches!(message.fields[*at].value, Value::Message(_));
    let places: Vec<_> = (0..message.fields.len()).filter(is_leaf).collect();
    let at = *places.get(dice.below(places.len()))?;
    Some((message, at))
}

fn value(dice: &mut Dice, root: &mut Message) {
    let texts = Texts::collect(root);
    let Some((message, at)) = leaf(dice, root) else { return };
    let kind = message.kind.name;
    let field = &mut message.fields[at];
    field.value = other(dice, &texts, kind, field.rule, &field.value);
}

/// Changes a number, or a text, in all fields that have it.
fn everywhere(dice: &mut Dice, root: &mut Message) {
    let texts = Texts::collect(root);
    let Some((message, at)) = leaf(dice, root) else { return };
    let (kind, Field { rule, value: old }) = (message.kind.name, message.fields[at].clone());
    let new = other(dice, &texts, kind, rule, &old);
    let meant = list(kind, rule);
    root.visit_mut(&mut |message| {
        let kind = message.kind.name;
        let same = message.fields.iter_mut().filter(|it| list(kind, it.rule) == meant && it.value == old);
        same.for_each(|field| field.value = new.clone());
    });
}

/// Replaces a message by a copy of another of its kind, or adds the copy.
fn transplant(dice: &mut Dice, root: &mut Message) {
    let donors = root.clone();
    let Some(message) = message(dice, root) else { return };
    let rule = dice.pick(&message.kind.rules);
    let Some(value) = copied(dice, &donors, rule.ty) else { return };
    let places = message.places(rule.name);
    match places.get(dice.below(places.len())) {
        Some(&at) if dice.chance(70) => message.fields[at].value = value,
        _ => message.fields.push(Field { rule, value }),
    }
}

/// Returns a copy of a message of this kind.
fn copied(dice: &mut Dice, donors: &Message, kind: &str) -> Option<Value> {
    let donors = donors.of_kind(kind);
    let donor = *donors.get(dice.below(donors.len()))?;
    Some(Value::Message(donor.clone()))
}

fn add(dice: &mut Dice, root: &mut Message) {
    let (texts, donors) = (Texts::collect(root), root.clone());
    let Some(message) = message(dice, root) else { return };
    let kind = message.kind;
    let rule = dice.pick(&kind.rules);
    let value = new(dice, &texts, &donors, kind.name, rule, 0);
    let at = dice.below(message.fields.len() + 1);
    message.fields.insert(at, Field { rule, value });
}

/// Returns a new value of a field.
fn new(
    dice: &mut Dice,
    texts: &Texts,
    donors: &Message,
    kind: &'static str,
    rule: &'static Rule,
    depth: usize,
) -> Value {
    let old = match rule.ty {
        "int" => Value::Int(0),
        "float" => Value::Float(0.0),
        "double" => Value::Double(0.0),
        "text" => Value::Bytes(Vec::new()),
        "bytes" => Value::Bytes(vec![0; dice.below(17)]),
        inner => {
            if dice.chance(50)
                && let Some(copy) = copied(dice, donors, inner)
            {
                return copy;
            }
            let mut made = Message::new(inner);
            let rules = made.kind.rules.iter().filter(|_| depth < 3 && dice.chance(50)).collect::<Vec<_>>();
            for rule in rules {
                let value = new(dice, texts, donors, made.kind.name, rule, depth + 1);
                made.fields.push(Field { rule, value });
            }
            return Value::Message(made);
        }
    };
    other(dice, texts, kind, rule, &old)
}

fn nested_types(dice: &mut Dice, root: &mut Message) {
    let depth = *dice.pick(&[2, 20, 45, 60]);
    let Some(ty) = root.any_mut(dice, "Type") else { return };
    for _ in 0..depth {
        let inner = std::mem::replace(ty, Message::new("Type"));
        *ty = Message::around("Type", "sequence_type", Message::around("Sequence", "elem_type", inner));
    }
}
