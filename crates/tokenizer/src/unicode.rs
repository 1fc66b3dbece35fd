//! Properties of characters, and the alphabet that byte-level vocabularies write bytes in.

use std::sync::LazyLock;

use unicode_general_category::{GeneralCategory as Category, get_general_category};

/// General categories as a set of bits.
pub(crate) type Categories = u32;

pub(crate) const LU: Categories = 1;
pub(crate) const LL: Categories = 1 << 1;
pub(crate) const LT: Categories = 1 << 2;
pub(crate) const LM: Categories = 1 << 3;
pub(crate) const LO: Categories = 1 << 4;
pub(crate) const LETTER: Categories = LU | LL | LT | LM | LO;
pub(crate) const MN: Categories = 1 << 5;
pub(crate) const MC: Categories = 1 << 6;
pub(crate) const ME: Categories = 1 << 7;
pub(crate) const MARK: Categories = MN | MC | ME;
pub(crate) const ND: Categories = 1 << 8;
pub(crate) const NL: Categories = 1 << 9;
pub(crate) const NO: Categories = 1 << 10;
pub(crate) const NUMBER: Categories = ND | NL | NO;
pub(crate) const PC: Categories = 1 << 11;
pub(crate) const PD: Categories = 1 << 12;
pub(crate) const PS: Categories = 1 << 13;
pub(crate) const PE: Categories = 1 << 14;
pub(crate) const PI: Categories = 1 << 15;
pub(crate) const PF: Categories = 1 << 16;
pub(crate) const PO: Categories = 1 << 17;
pub(crate) const PUNCTUATION: Categories = PC | PD | PS | PE | PI | PF | PO;
pub(crate) const SM: Categories = 1 << 18;
pub(crate) const SC: Categories = 1 << 19;
pub(crate) const SK: Categories = 1 << 20;
pub(crate) const SO: Categories = 1 << 21;
pub(crate) const SYMBOL: Categories = SM | SC | SK | SO;
pub(crate) const ZS: Categories = 1 << 22;
pub(crate) const ZL: Categories = 1 << 23;
pub(crate) const ZP: Categories = 1 << 24;
pub(crate) const SEPARATOR: Categories = ZS | ZL | ZP;
pub(crate) const CC: Categories = 1 << 25;
pub(crate) const CF: Categories = 1 << 26;
pub(crate) const CO: Categories = 1 << 27;
pub(crate) const CS: Categories = 1 << 28;
pub(crate) const CN: Categories = 1 << 29;
pub(crate) const OTHER: Categories = CC | CF | CO | CS | CN;

/// The category of a character, as one bit.
pub(crate) fn category(c: char) -> Categories {
    match get_general_category(c) {
        Category::UppercaseLetter => LU,
        Category::LowercaseLetter => LL,
        Category::TitlecaseLetter => LT,
        Category::ModifierLetter => LM,
        Category::OtherLetter => LO,
        Category::NonspacingMark => MN,
        Category::SpacingMark => MC,
        Category::EnclosingMark => ME,
        Category::DecimalNumber => ND,
        Category::LetterNumber => NL,
        Category::OtherNumber => NO,
        Category::ConnectorPunctuation => PC,
        Category::DashPunctuation => PD,
        Category::OpenPunctuation => PS,
        Category::ClosePunctuation => PE,
        Category::InitialPunctuation => PI,
        Category::FinalPunctuation => PF,
        Category::OtherPunctuation => PO,
        Category::MathSymbol => SM,
        Category::CurrencySymbol => SC,
        Category::ModifierSymbol => SK,
        Category::OtherSymbol => SO,
        Category::SpaceSeparator => ZS,
        Category::LineSeparator => ZL,
        Category::ParagraphSeparator => ZP,
        Category::Control => CC,
        Category::Format => CF,
        Category::PrivateUse => CO,
        Category::Surrogate => CS,
        _ => CN,
    }
}

/// The categories that a regular expression calls `name`.
pub(crate) fn categories(name: &str) -> Option<Categories> {
    Some(match name {
        "L" | "Letter" => LETTER,
        "Lu" => LU,
        "Ll" => LL,
        "Lt" => LT,
        "Lm" => LM,
        "Lo" => LO,
        "M" | "Mark" => MARK,
        "Mn" => MN,
        "Mc" => MC,
        "Me" => ME,
        "N" | "Number" => NUMBER,
        "Nd" => ND,
        "Nl" => NL,
        "No" => NO,
        "P" | "Punctuation" | "Punct" => PUNCTUATION,
        "Pc" => PC,
        "Pd" => PD,
        "Ps" => PS,
        "Pe" => PE,
        "Pi" => PI,
        "Pf" => PF,
        "Po" => PO,
        "S" | "Symbol" => SYMBOL,
        "Sm" => SM,
        "Sc" => SC,
        "Sk" => SK,
        "So" => SO,
        "Z" | "Separator" => SEPARATOR,
        "Zs" => ZS,
        "Zl" => ZL,
        "Zp" => ZP,
        "C" | "Other" => OTHER,
        "Cc" => CC,
        "Cf" => CF,
        "Co" => CO,
        "Cs" => CS,
        "Cn" => CN,
        _ => return None,
    })
}

/// The characters of the scripts that pre-tokenizers name.
pub(crate) fn script(name: &str) -> Option<&'static [(char, char)]> {
    Some(match name {
        "Han" | "Script=Han" => &[
            ('\u{2E80}', '\u{2E99}'),
            ('\u{2E9B}', '\u{2EF3}'),
            ('\u{2F00}', '\u{2FD5}'),
            ('\u{3005}', '\u{3005}'),
            ('\u{3007}', '\u{3007}'),
            ('\u{3021}', '\u{3029}'),
            ('\u{3038}', '\u{303B}'),
            ('\u{3400}', '\u{4DBF}'),
            ('\u{4E00}', '\u{9FFF}'),
            ('\u{F900}', '\u{FA6D}'),
            ('\u{FA70}', '\u{FAD9}'),
            ('\u{16FE2}', '\u{16FE3}'),
            ('\u{16FF0}', '\u{16FF1}'),
            ('\u{20000}', '\u{2A6DF}'),
            ('\u{2A700}', '\u{2B739}'),
            ('\u{2B740}', '\u{2B81D}'),
            ('\u{2B820}', '\u{2CEA1}'),
            ('\u{2CEB0}', '\u{2EBE0}'),
            ('\u{2EBF0}', '\u{2EE5D}'),
            ('\u{2F800}', '\u{2FA1D}'),
            ('\u{30000}', '\u{3134A}'),
            ('\u{31350}', '\u{323AF}'),
        ],
        _ => return None,
    })
}

/// `\w` of a regular expression. As in Oniguruma, which Hugging Face's tokenizers use, the superscripts and fractions of
/// Latin-1 are among them, while other numbers that are no digits are not.
pub(crate) fn is_word(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphanumeric() || c == '_';
    }
    matches!(c, '²' | '³' | '¹' | '¼'..='¾') || c.is_alphabetic() || category(c) & (MARK | ND | PC) != 0
}

/// Punctuation as BERT has it: all of ASCII that is neither letter, digit nor space, and Unicode's.
pub(crate) fn is_punctuation(c: char) -> bool {
    if c.is_ascii() { c.is_ascii_punctuation() } else { category(c) & PUNCTUATION != 0 }
}

/// Ideographs that BERT's normaliser sets apart.
pub(crate) fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{4E00}'..='\u{9FFF}' | '\u{3400}'..='\u{4DBF}' | '\u{20000}'..='\u{2A6DF}' | '\u{2A700}'..='\u{2B73F}'
        | '\u{2B740}'..='\u{2B81F}' | '\u{2B920}'..='\u{2CEAF}' | '\u{F900}'..='\u{FAFF}' | '\u{2F800}'..='\u{2FA1F}')
}

/// Byte-level vocabularies write every byte as a printable character: this is the character of each byte.
pub(crate) static BYTE_CHARS: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut next = 256u32;
    std::array::from_fn(|byte| {
        let printable = matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
        let code = if printable {
            byte as u32
        } else {
            next += 1;
            next - 1
        };
        char::from_u32(code).unwrap_or('?')
    })
});

/// The byte that a character of [`BYTE_CHARS`] stands for.
pub(crate) fn byte_of_char(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => Some(code as u8),
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The bytes that a token of a byte-level vocabulary stands for; `None` if a character is not of the alphabet.
pub(crate) fn bytes_of_chars(text: &str) -> Option<Vec<u8>> {
    text.chars().map(byte_of_char).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_goes_both_ways() {
        for (byte, &c) in BYTE_CHARS.iter().enumerate() {
            assert_eq!(byte_of_char(c), Some(byte as u8), "{c:?}");
        }
        assert_eq!(BYTE_CHARS[usize::from(b' ')], 'Ġ');
        assert_eq!(BYTE_CHARS[usize::from(b'\n')], 'Ċ');
    }
}
