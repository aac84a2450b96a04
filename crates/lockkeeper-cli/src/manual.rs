//! The manual page: one page for the program and all its commands.

use std::io;

use clap::Command;
use clap_mangen::Man;

/// Writes the page, in the language of `man`.
pub(crate) fn page(mut program: Command) -> io::Result<Vec<u8>> {
    program.build();
    let mut page = Vec::new();
    let man = Man::new(program.clone());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    for (name, command) in commands("", &program) {
        let man = Man::new(command.clone());
        let mut part = Vec::new();
        man.render_synopsis_section(&mut part)?;
        man.render_description_section(&mut part)?;
        man.render_options_section(&mut part)?;
        if command.get_after_long_help().is_some() {
            man.render_extra_section(&mut part)?;
        }
        // What is a section in a page of its own is a part of one here.
        let part = String::from_utf8_lossy(&part).replace(".SH ", ".SS ");
        page.extend_from_slice(format!(".SH {name}\n{part}").as_bytes());
    }
    Ok(page)
}

/// All commands below this one, also those of commands, with what is typed for each.
fn commands<'a>(above: &str, program: &'a Command) -> Vec<(String, &'a Command)> {
    let each = program.get_subcommands().filter(|command| command.get_name() != "help");
    let parts = each.map(|command| {
        let name = format!("{above}{}", command.get_name().to_uppercase());
        let below = commands(&format!("{name} "), command);
        [vec![(name, command)], below].concat()
    });
    parts.collect::<Vec<_>>().concat()
}
