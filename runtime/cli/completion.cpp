// completion, man: what the parser knows of commands and options, as shells complete it and as a
// page of the manual. The help texts are the only source.
#include <algorithm>
#include <functional>
#include <iostream>
#include <set>

#include "engine/base/environment.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/terminal.h"

namespace ferrule::cli {
namespace {

struct Word {
  std::vector<std::string> names;   ///< "--rules"; empty: a positional
  std::string doc, type;            ///< "DIR"
  std::vector<std::string> values;  ///< the only ones there are
  bool takes_value = false, everywhere = false;
};
struct Spoken {
  std::string path, doc, footer;  ///< "rules list"
  std::vector<Word> words;
  std::vector<std::pair<std::string, std::string>> commands;  ///< below it, with their texts
};

/// "TEXT:{a,b}" of CLI11: what it is called, and the values it may have.
void read_type(std::string type, Word& w) {
  const size_t open = type.find('{'), close = type.find('}', open);
  if (open != type.npos && close != type.npos) {
    for (size_t at = open + 1; at < close;) {
      const size_t comma = std::min(type.find(',', at), close);
      w.values.push_back(type.substr(at, comma - at));
      at = comma + 1;
    }
    type.resize(open);
  }
  w.type = type.substr(0, type.find(':'));
}

void read_options(const CLI::App& app, bool everywhere, std::vector<Word>& out) {
  for (const CLI::Option* o : app.get_options()) {
    Word w;
    for (const std::string& s : o->get_snames()) w.names.push_back("-" + s);
    for (const std::string& l : o->get_lnames()) w.names.push_back("--" + l);
    w.doc = o->get_description();
    w.takes_value = o->get_items_expected_max() > 0;
    w.everywhere = everywhere;
    if (w.takes_value) read_type(o->get_type_name(), w);
    if (w.names.empty()) w.type = o->get_name();
    out.push_back(std::move(w));
  }
}

void read_app(const CLI::App& app, const std::string& path, std::vector<Spoken>& out) {
  Spoken c{path, app.get_description(), app.get_footer(), {}, {}};
  read_options(app, false, c.words);
  std::vector<const CLI::App*> below;
  for (const CLI::App* s : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (s->get_name().empty()) {
      read_options(*s, true, c.words);  // an option group
      continue;
    }
    c.commands.emplace_back(s->get_name(), s->get_description());
    below.push_back(s);
  }
  out.push_back(std::move(c));
  for (const CLI::App* s : below)
    read_app(*s, path.empty() ? s->get_name() : path + " " + s->get_name(), out);
}

std::vector<Spoken> spoken(const CLI::App& app) {
  std::vector<Spoken> out;
  read_app(app, "", out);
  return out;
}

std::string joined(const std::vector<std::string>& words, std::string_view between = " ") {
  return fmt::format("{}", fmt::join(words, between));
}

std::vector<std::string> first_words(const Spoken& c) {
  std::vector<std::string> out;
  for (const auto& [name, _] : c.commands) out.push_back(name);
  return out;
}

/// In single quotes, for all three shells.
std::string shell_word(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string bash(const std::vector<Spoken>& all) {
  std::string out =
      "# ferrule completion bash > /etc/bash_completion.d/ferrule, or: source <(ferrule completion "
      "bash)\n_ferrule() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} path= words= k\n"
      "  COMPREPLY=()\n"
      "  for ((k = 1; k < COMP_CWORD; ++k)); do\n"
      "    case \"$path ${COMP_WORDS[k]}\" in\n";
  std::vector<std::string> paths;
  for (const Spoken& c : all)
    if (!c.path.empty()) paths.push_back("\" " + c.path + "\"");
  out +=
      "      " + joined(paths, " | ") + ") path=\"$path ${COMP_WORDS[k]}\" ;;\n    esac\n  done\n";
  std::set<std::string> seen;
  out += "  case \"$path $prev\" in\n";
  for (const Spoken& c : all)
    for (const Word& w : c.words)
      if (!w.values.empty()) {
        std::vector<std::string> patterns;
        for (const std::string& n : w.names)
          patterns.push_back(fmt::format("\"{}{} {}\"", c.path.empty() ? "" : " ", c.path, n));
        if (w.names.empty()) continue;
        out += fmt::format("    {}) COMPREPLY=($(compgen -W \"{}\" -- \"$cur\")); return ;;\n",
                           joined(patterns, " | "), joined(w.values));
      }
  out += "  esac\n  case \"$path\" in\n";
  for (const Spoken& c : all) {
    std::vector<std::string> words = first_words(c);
    for (const Word& w : c.words) {
      words.insert(words.end(), w.names.begin(), w.names.end());
      if (w.names.empty()) words.insert(words.end(), w.values.begin(), w.values.end());
    }
    out += fmt::format("    \"{}{}\") words=\"{}\" ;;\n", c.path.empty() ? "" : " ", c.path,
                       joined(words));
  }
  return out +
         "  esac\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
         "  [[ ${COMPREPLY[*]} ]] || compopt -o default 2>/dev/null\n"
         "}\ncomplete -F _ferrule ferrule\n";
}

/// Text inside [...] of _arguments.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_function(const std::string& path) {
  std::string out = "_ferrule";
  for (char c : path.empty() ? path : " " + path) out += c == ' ' ? '_' : c;
  return out;
}

std::string zsh(const std::vector<Spoken>& all) {
  std::string out = "#compdef ferrule\n# ferrule completion zsh > a folder of $fpath/_ferrule\n";
  for (const Spoken& c : all) {
    out += zsh_function(c.path) + "() {\n";
    std::string arguments;
    for (const Word& w : c.words) {
      std::string value = w.values.empty() ? w.type == "DIR" ? "_files -/" : "_files"
                                           : "(" + joined(w.values) + ")";
      if (w.names.empty()) {
        arguments += " \\\n    " + shell_word("*:" + zsh_text(w.type) + ":" + value);
        continue;
      }
      for (const std::string& n : w.names)
        arguments +=
            " \\\n    " + shell_word("*" + n + "[" + zsh_text(w.doc) + "]" +
                                     (w.takes_value ? ":" + zsh_text(w.type) + ":" + value : ""));
    }
    if (c.commands.empty()) {
      out += "  _arguments" + arguments + "\n}\n";
      continue;
    }
    out += "  local line state\n  _arguments -C" + arguments +
           " \\\n    '1: :->command' \\\n    '*:: :->rest'\n  case $state in\n    command)\n"
           "      local -a commands=(";
    for (const auto& [name, doc] : c.commands) out += "\n        " + shell_word(name + ":" + doc);
    out += ")\n      _describe command commands ;;\n    rest)\n      case $line[1] in\n";
    for (const auto& [name, _] : c.commands)
      out += fmt::format("        {}) {} ;;\n", name,
                         zsh_function(c.path.empty() ? name : c.path + " " + name));
    out += "      esac ;;\n  esac\n}\n";
  }
  return out + "_ferrule \"$@\"\n";
}

std::string fish(const std::vector<Spoken>& all) {
  std::string out =
      "# ferrule completion fish > ~/.config/fish/completions/ferrule.fish\n"
      "complete -c ferrule -f -n __fish_use_subcommand\n";
  for (const Spoken& c : all) {
    std::string when = "__fish_use_subcommand";
    if (!c.path.empty()) {
      when.clear();
      for (size_t at = 0; at <= c.path.size();) {
        const size_t end = std::min(c.path.find(' ', at), c.path.size());
        when += (when.empty() ? "" : "; and ") + std::string("__fish_seen_subcommand_from ") +
                c.path.substr(at, end - at);
        at = end + 1;
      }
    }
    std::string below = when;
    if (!c.path.empty() && !c.commands.empty())
      below += "; and not __fish_seen_subcommand_from " + joined(first_words(c));
    for (const auto& [name, doc] : c.commands)
      out += fmt::format("complete -c ferrule -f -n {} -a {} -d {}\n", shell_word(below), name,
                         shell_word(doc));
    for (const Word& w : c.words) {
      if (w.names.empty()) {
        if (!w.values.empty())
          out += fmt::format("complete -c ferrule -f -n {} -a {}\n", shell_word(when),
                             shell_word(joined(w.values)));
        continue;
      }
      std::string line = "complete -c ferrule -n " + shell_word(when);
      for (const std::string& n : w.names)
        line += n.starts_with("--") ? " -l " + n.substr(2) : " -s " + n.substr(1);
      if (w.takes_value) line += " -r";
      if (!w.values.empty()) line += " -f -a " + shell_word(joined(w.values));
      out += line + " -d " + shell_word(w.doc) + "\n";
    }
  }
  return out;
}

// --- the manual

std::string roff(const std::string& text) {
  std::string out;
  for (size_t k = 0; k < text.size(); ++k) {
    const bool starts = k == 0 || text[k - 1] == '\n';
    if (starts && (text[k] == '.' || text[k] == '\'')) out += "\\&";
    if (text[k] == '\\')
      out += "\\e";
    else if (text[k] == '-')
      out += "\\-";
    else
      out += text[k];
  }
  return out;
}

void roff_word(const Word& w, std::string& out) {
  std::vector<std::string> names;
  for (const std::string& n : w.names) names.push_back("\\fB" + roff(n) + "\\fR");
  std::string head = joined(names, ", ");
  if (names.empty() || w.takes_value)
    head += fmt::format("{}\\fI{}\\fR", names.empty() ? "" : " ", roff(w.type));
  out += ".TP\n" + head + "\n" + roff(w.doc);
  if (!w.values.empty() && w.doc.find(w.values.front()) == std::string::npos)
    out += roff(": " + joined(w.values, ", "));
  out += "\n";
}

std::string manual(const std::vector<Spoken>& all) {
  std::string out = ".TH FERRULE 1 \"\" \"ferrule " FERRULE_VERSION "\"\n.SH NAME\nferrule \\- " +
                    roff(all.front().doc) +
                    "\n.SH SYNOPSIS\n.B ferrule\n\\fICOMMAND\\fR [\\fIOPTIONS\\fR] "
                    "[\\fIARGUMENTS\\fR]\n.SH COMMANDS\n";
  std::vector<Word> everywhere;
  std::set<std::string> known;
  for (const Spoken& c : all) {
    if (c.path.empty()) continue;
    out += ".SS \"ferrule " + roff(c.path) + "\"\n" + roff(c.doc) + "\n";
    for (const Word& w : c.words) {
      if (w.everywhere && known.insert(w.names.empty() ? w.type : w.names.front()).second)
        everywhere.push_back(w);
      if (!w.everywhere && (w.names.empty() || w.names.back() != "--help")) roff_word(w, out);
    }
    if (!c.footer.empty()) out += ".PP\n.nf\n" + roff(c.footer) + "\n.fi\n";
  }
  out += ".SH OPTIONS EVERYWHERE\nCommands that work on a model take these, too.\n";
  for (const Word& w : everywhere) roff_word(w, out);
  out +=
      ".SH EXIT STATUS\n.nf\n0   fine\n1   results differ\n2   bad usage or input\n3   not "
      "supported\n4   a limit was met\n5   something is missing on this machine\n70  a mistake of "
      "ferrule's\n.fi\n.SH ENVIRONMENT\n";
  for (const VariableDoc& v : environment_docs())
    out += ".TP\n\\fB" + roff(std::string(v.name)) + "\\fR\n" + roff(std::string(v.says)) + "\n";
  return out;
}

}  // namespace

void add_completion(CLI::App& app, Common& common, int& exit) {
  auto* c = app.add_subcommand("completion", "what makes a shell complete ferrule's commands");
  auto shell = std::make_shared<std::string>();
  c->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  c->footer(
      "Examples:\n  source <(ferrule completion bash)\n  ferrule completion zsh > "
      "~/.zfunc/_ferrule\n  ferrule completion fish > ~/.config/fish/completions/ferrule.fish");
  set_body(*c, common, exit, [&app, shell](const Common&) -> Result<Exit> {
    const auto all = spoken(app);
    print_unfolded();
    std::cout << (*shell == "bash" ? bash(all) : *shell == "zsh" ? zsh(all) : fish(all));
    return Exit::ok;
  });
  auto* m = app.add_subcommand("man", "the page of the manual");
  m->footer(
      "Examples:\n  ferrule man | man -l -\n  ferrule man > ~/.local/share/man/man1/ferrule.1\n"
      "  ferrule man | gzip > ferrule.1.gz");
  set_body(*m, common, exit, [&app](const Common&) -> Result<Exit> {
    print_unfolded();
    std::cout << manual(spoken(app));
    return Exit::ok;
  });
  // Taken before the parser sees it (main.cpp); here, so that it is listed.
  app.add_subcommand("help", "what a command does, with its options and examples");
}

}  // namespace ferrule::cli
