//! Dates in UTC, for templates that write the day.

/// Seconds since 1970; `None` where there is no clock.
pub(super) fn now() -> Option<i64> {
    if cfg!(all(target_arch = "wasm32", target_os = "unknown")) {
        return None;
    }
    let elapsed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(elapsed.as_secs()).ok()
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The directives of `strftime` that templates use; others stay as they are.
pub(super) fn strftime(format: &str, seconds: i64) -> String {
    // The range of four-digit years.
    let seconds = seconds.clamp(-62_135_596_800, 253_402_300_799);
    let (days, time) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let weekday = (days + 4).rem_euclid(7) as usize;
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let month_name = MONTHS[month as usize - 1];
        match chars.next() {
            Some('Y') => out.push_str(&format!("{year:04}")),
            Some('y') => out.push_str(&format!("{:02}", year % 100)),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('e') => out.push_str(&format!("{day:2}")),
            Some('B') => out.push_str(month_name),
            Some('b') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(DAYS[weekday]),
            Some('a') => out.push_str(&DAYS[weekday][..3]),
            Some('j') => out.push_str(&format!("{:03}", days - days_before(year) + 1)),
            Some('H') => out.push_str(&format!("{hour:02}")),
            Some('I') => out.push_str(&format!("{:02}", (hour + 11) % 12 + 1)),
            Some('M') => out.push_str(&format!("{minute:02}")),
            Some('S') => out.push_str(&format!("{second:02}")),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('F') => out.push_str(&format!("{year:04}-{month:02}-{day:02}")),
            Some('T') => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Days from 1970 to the first of January of a year.
fn days_before(year: i64) -> i64 {
    let years = year - 1;
    years * 365 + years.div_euclid(4) - years.div_euclid(100) + years.div_euclid(400) - 719_162
}

/// Year, month and day of a day since 1970.
fn civil(days: i64) -> (i64, i64, i64) {
    let mut year = 1970 + days.div_euclid(366);
    while days_before(year + 1) <= days {
        year += 1;
    }
    let leap = days_before(year + 1) - days_before(year) == 366;
    let mut rest = days - days_before(year);
    for (i, length) in
        [31, 28 + i64::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31].into_iter().enumerate()
    {
        if rest < length {
            return (year, i as i64 + 1, rest + 1);
        }
        rest -= length;
    }
    (year, 12, 31)
}
