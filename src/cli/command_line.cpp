// Commands, options and checks over CLI11, and what is said of a command line that is wrong.
// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <optional>
#include <utility>

namespace kvlane {
namespace {

constexpr int kFailure = 1;
constexpr int kUsage = 2;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

template <class Number>
bool overflows(std::string_view text) {
  Number number = 0;
  return std::from_chars(text.begin(), text.end(), number).ec == std::errc::result_out_of_range;
}

// Why CLI11 would take `text` for another whole number; empty if it would not.
std::string misread(const std::string& text, bool is_signed) {
  const bool negative = text.starts_with('-');
  if (negative && !is_signed) return text + " is negative";
  const std::string_view digits = std::string_view(text).substr(negative ? 1 : 0);
  if (digits.size() > 1 && digits[0] == '0' && is_digit(digits[1])) {
    return text + " begins with 0, decimal numbers do not";
  }
  const bool too_large = is_signed ? overflows<std::int64_t>(text) : overflows<std::uint64_t>(text);
  return too_large ? text + " is too large" : std::string();
}

// Throws CLI::ValidationError for the first option of the chosen commands whose number is empty,
// negative where none may be, octal or too large. CLI11 reads these as 0, as the largest number, as
// 8 (010), and as the largest again. Every option goes through here, so none needs a check of its
// own.
void check_numbers(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) check_numbers(*command);
  for (const CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    const bool is_unsigned = type.starts_with("UINT");
    const bool is_signed = type.starts_with("INT");
    if (!is_unsigned && !is_signed && !type.starts_with("FLOAT")) continue;
    for (const std::string& text : option->results()) {
      std::string reason = text.empty() ? "a number is missing" : "";
      if (is_unsigned || is_signed) reason += misread(text, is_signed);
      if (!reason.empty()) throw CLI::ValidationError(option->get_name(), reason);
    }
  }
}

// Messages quote what was typed, which may be anything.
std::string one_line(std::string text) {
  constexpr std::size_t kBytesMax = 200;
  if (text.size() > kBytesMax) text.replace(kBytesMax, std::string::npos, "...");
  for (char& c : text) {
    if (c >= 0 && c < ' ') c = ' ';
  }
  return text;
}

// "kvlane bench codec": the commands that were typed.
std::string typed_command(const CLI::App& app) {
  const auto commands = app.get_subcommands();
  return commands.empty() ? app.get_name()
                          : app.get_name() + " " + typed_command(*commands.front());
}

// One sentence for a person, and where to read on.
std::string usage_error(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  std::string message = error.what();
  if (app.get_subcommands().empty() && argc > 1 && argv[1][0] != '-') {
    // CLI11 only sees that no command it knows was given.
    message = "there is no command '" + std::string(argv[1]) + "'";
  } else if (message == "--model is required") {
    // Of two names CLI11 tells the one that hardly anybody types.
    message = "a model directory is required";
  }
  return one_line(std::move(message)) + "; see " + typed_command(app) + " --help";
}

}  // namespace

// --- checks
// ---------------------------------------------------------------------------------------

Validator::Validator(const CLI::Validator& validator)
    : validator_(std::make_shared<const CLI::Validator>(validator)) {}

template <class Number>
Validator range(Number min, Number max) {
  return Validator(CLI::Range(min, max));
}
template Validator range(int, int);
template Validator range(std::uint32_t, std::uint32_t);
template Validator range(std::uint64_t, std::uint64_t);
template Validator range(double, double);

Validator positive_number() { return Validator(CLI::PositiveNumber); }
Validator one_of(const std::vector<std::string>& values) {
  return Validator(CLI::IsMember(values));
}
Validator as_size() { return Validator(CLI::AsSizeValue(false)); }

template <class Number>
bool read_number(const std::string& text, Number& number) {
  return CLI::detail::lexical_cast(text, number);
}
template bool read_number(const std::string&, int&);
template bool read_number(const std::string&, std::uint64_t&);
template bool read_number(const std::string&, double&);

// --- options
// --------------------------------------------------------------------------------------

Option Option::required() {
  option_->required();
  return *this;
}

Option Option::check(const Validator& validator) {
  option_->check(*validator.validator_);
  return *this;
}

Option Option::check(const Check& check) {
  option_->check(check);
  return *this;
}

Option Option::transform(const Validator& validator) {
  option_->transform(*validator.validator_);
  return *this;
}

Option Option::transform(const std::function<std::string(const std::string&)>& change) {
  option_->transform(change);
  return *this;
}

Option Option::needs(Option other) {
  option_->needs(other.option_);
  return *this;
}

Option Option::excludes(Option other) {
  option_->excludes(other.option_);
  return *this;
}

Option Option::envname(const std::string& variable) {
  option_->envname(variable);
  return *this;
}

Option Option::delimiter(char mark) {
  option_->delimiter(mark);
  return *this;
}

Option Option::one_value_each() {
  option_->allow_extra_args(false);
  return *this;
}

Option Option::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

Option Option::default_str(const std::string& value) {
  option_->default_str(value);
  return *this;
}

Option Option::capture_default_str() {
  option_->capture_default_str();
  return *this;
}

Option Option::hide() {
  option_->group("");
  return *this;
}

// --- commands
// -------------------------------------------------------------------------------------

Command Command::add_subcommand(const std::string& name, const std::string& about) {
  return {app_->add_subcommand(name, about), chosen_};
}

void Command::require_subcommand() { app_->require_subcommand(1); }

void Command::footer(const std::string& text) { app_->footer(text); }

template <class Value>
Option Command::add_option(const std::string& names, Value& value, const std::string& about) {
  return Option(app_->add_option(names, value, about));
}

template Option Command::add_option(const std::string&, std::string&, const std::string&);
template Option Command::add_option(const std::string&, std::filesystem::path&, const std::string&);
template Option Command::add_option(const std::string&, int&, const std::string&);
template Option Command::add_option(const std::string&, std::uint16_t&, const std::string&);
template Option Command::add_option(const std::string&, std::uint32_t&, const std::string&);
template Option Command::add_option(const std::string&, std::uint64_t&, const std::string&);
template Option Command::add_option(const std::string&, float&, const std::string&);
template Option Command::add_option(const std::string&, double&, const std::string&);
template Option Command::add_option(const std::string&, std::optional<int>&, const std::string&);
template Option Command::add_option(const std::string&, std::optional<std::uint64_t>&,
                                    const std::string&);
template Option Command::add_option(const std::string&, std::optional<double>&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<std::string>&,
                                    const std::string&);
template Option Command::add_option(const std::string&, std::vector<int>&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<std::uint64_t>&,
                                    const std::string&);
template Option Command::add_option(const std::string&, std::vector<double>&, const std::string&);

Option Command::add_flag(const std::string& names, bool& value, const std::string& about) {
  return Option(app_->add_flag(names, value, about));
}

Option Command::get_option(const std::string& name) { return Option(app_->get_option(name)); }

void Command::action(Run run) {
  app_->callback([app = app_, chosen = chosen_, run = std::move(run)] {
    if (app->get_subcommands().empty()) *chosen = run;
  });
}

void Command::action(Run run, Option needed) {
  app_->callback([app = app_, chosen = chosen_, run = std::move(run), option = needed.option_] {
    if (!app->get_subcommands().empty()) return;
    if (option->count() == 0 || option->results().front().empty()) {
      throw CLI::RequiredError(option->get_name());
    }
    *chosen = run;
  });
}

std::string Command::typed_options() const {
  std::string text;
  for (const CLI::Option* option : std::as_const(*app_).get_options()) {
    if (option->count() == 0 || option->get_name() == "--api-key") continue;
    if (!option->get_positional()) text += option->get_name() + " ";
    if (option->get_expected_max() == 0) continue;  // a flag
    for (const std::string& value : option->results()) text += value + " ";
  }
  if (!text.empty()) text.pop_back();
  return text;
}

int run_command_line(int argc, char** argv, const std::string& about,
                     const std::function<void(Command&)>& add_commands) {
  CLI::App app(about, "kvlane");
  Run run;
  Command program(&app, &run);
  add_commands(program);
  try {
    app.parse(argc, argv);
    check_numbers(app);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    std::cerr << "kvlane: " << usage_error(app, error, argc, argv) << '\n';
    return kUsage;
  }
  const Status status = run();
  if (status.ok()) return 0;
  std::cerr << "kvlane: " << status.message() << '\n';
  return kFailure;
}

}  // namespace kvlane
