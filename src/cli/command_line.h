// The command line as subcommands see it: commands, their options, and checks of what is typed.
// CLI11 does the work. It costs seconds in every file that includes it: command_line.cpp alone
// does.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvlane/status.h"

namespace CLI {
class App;
class Option;
class Validator;
}  // namespace CLI

namespace kvlane {

// What a command does once the command line was parsed. An error becomes one sentence on stderr and
// exit code 1.
using Run = std::function<Status()>;

// A check of ours: why it refuses what was typed, empty if it does not.
using Check = std::function<std::string(const std::string&)>;

// A check of CLI11's, which `--help` describes.
class Validator {
 public:
  explicit Validator(const CLI::Validator& validator);

 private:
  friend class Option;
  std::shared_ptr<const CLI::Validator> validator_;
};

// Numbers from `min` to `max`, for int, uint32, uint64 and double. It lets "nan" through, which
// number_between() in cli/flags.h refuses.
template <class Number>
Validator range(Number min, Number max);
Validator positive_number();
Validator one_of(const std::vector<std::string>& values);
// Bytes with or without a unit, a power of 1024: 4096, 512MiB, 4G.
Validator as_size();

// Whether `text` is a number as options read it, for int, uint64 and double.
template <class Number>
bool read_number(const std::string& text, Number& number);

// Refers to an option, and is copied freely. It lives as long as the command line.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option required();
  Option check(const Validator& validator);
  Option check(const Check& check);
  // Comes before checks.
  Option transform(const Validator& validator);
  Option transform(const std::function<std::string(const std::string&)>& change);
  Option needs(Option other);
  Option excludes(Option other);
  Option envname(const std::string& variable);
  // Between values that are typed as one.
  Option delimiter(char mark);
  // A list takes one value each time it is named, not all that follow.
  Option one_value_each();
  // What `--help` shows.
  Option type_name(const std::string& name);
  Option default_str(const std::string& value);
  Option capture_default_str();  // of what the variable holds now
  Option hide();

 private:
  friend class Command;
  CLI::Option* option_;
};

// Refers to the program or to one of its subcommands, and is copied freely. It lives as long as the
// command line.
class Command {
 public:
  // `chosen` gets the action of the command that was typed.
  Command(CLI::App* app, Run* chosen) : app_(app), chosen_(chosen) {}

  Command add_subcommand(const std::string& name, const std::string& about);
  void require_subcommand();
  void footer(const std::string& text);

  // `value` is set when the option is given, and must live until the action has run. Types of
  // values are listed in command_line.cpp.
  template <class Value>
  Option add_option(const std::string& names, Value& value, const std::string& about = {});
  Option add_flag(const std::string& names, bool& value, const std::string& about);
  Option get_option(const std::string& name);

  // What the command does if it was typed, and none of its subcommands.
  void action(Run run);
  // Asks for `needed` in that case alone; required() would ask for it in subcommands, too.
  void action(Run run, Option needed);

  // The options as they were typed, secrets left out: what figures are recorded with.
  std::string typed_options() const;

 private:
  CLI::App* app_;
  Run* chosen_;
};

// Parses the command line of the program that `add_commands` makes, and runs what was chosen.
// Returns the exit code: 0, 1 after an error, 2 when the command line is wrong.
int run_command_line(int argc, char** argv, const std::string& about,
                     const std::function<void(Command&)>& add_commands);

}  // namespace kvlane
