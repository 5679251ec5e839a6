// Shows examples, asks, and compares what comes.
// SPDX-License-Identifier: Apache-2.0
#include "eval/exact_match.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "eval/bootstrap.h"
#include "eval/generation.h"
#include "eval/json_lines.h"
#include "eval/text_similarity.h"
#include "eval/wilson.h"

namespace kvlane {
namespace {

using Fields = std::map<std::string, std::string>;

// One question as the model sees it.
struct Question {
  std::string text;      // what is asked, examples not included
  std::string solution;  // what follows it in an example
};

// How one kind of file is asked and scored.
struct Kind {
  const char* question_field;
  const char* solution_field;
  std::string_view before;   // the question
  std::string_view between;  // question and solution
  std::string_view after;    // an example
  bool code;
};

constexpr Kind kNumbers{"question", "answer", "Question: ", "\nAnswer: ", "\n\n", false};
constexpr Kind kCode{"prompt", "canonical_solution", "", "", "\n\n", true};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The end of the number that begins at `at`, which is a digit.
std::size_t number_end(std::string_view text, std::size_t at) {
  const auto digit_at = [&](std::size_t i) { return i < text.size() && is_digit(text[i]); };
  while (digit_at(at) || (at < text.size() && text[at] == ',' && digit_at(at + 1))) ++at;
  if (at < text.size() && text[at] == '.' && digit_at(at + 1)) {
    ++at;
    while (digit_at(at)) ++at;
  }
  return at;
}

std::string plain_number(std::string_view digits, bool negative) {
  std::string plain;
  for (const char c : digits) {
    if (c != ',') plain += c;
  }
  if (plain.find('.') != std::string::npos) {
    plain.erase(plain.find_last_not_of('0') + 1);
    if (plain.ends_with('.')) plain.pop_back();
  }
  plain.erase(0, std::min(plain.find_first_not_of('0'), plain.size()));
  if (plain.empty() || plain[0] == '.') plain.insert(0, "0");
  return negative && plain != "0" ? "-" + plain : plain;
}

std::vector<std::string> numbers_of(std::string_view text) {
  std::vector<std::string> numbers;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (!is_digit(text[at])) continue;
    // "-5" and "-$5", but not the second number of "7-5".
    std::size_t sign = at;
    if (sign > 0 && text[sign - 1] == '$') --sign;
    const bool negative =
        sign > 0 && text[sign - 1] == '-' &&
        (sign == 1 || text[sign - 2] == ' ' || text[sign - 2] == '\n' || text[sign - 2] == '#');
    const std::size_t end = number_end(text, at);
    numbers.push_back(plain_number(text.substr(at, end - at), negative));
    at = end;
  }
  return numbers;
}

// Blanks at the ends of lines and of the text do not count.
std::string trimmed(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\n') result.erase(result.find_last_not_of(" \t\r") + 1);
    result += c;
  }
  result.erase(result.find_last_not_of(" \t\r\n") + 1);
  return result;
}

std::string first_line(const std::string& text) {
  const std::size_t start = text.find_first_not_of('\n');
  return start == std::string::npos ? "" : text.substr(start, text.find('\n', start) - start);
}

Result<std::vector<Question>> read_questions(const ExactMatchTask& task, const Kind*& kind,
                                             std::string& digest) {
  KVLANE_ASSIGN(const JsonLines file, read_json_lines(task.file));
  digest = file.digest;
  const std::vector<Fields>& lines = file.lines;
  if (lines.empty()) return invalid_argument(task.file.string() + " holds no question");
  kind = lines[0].contains(kCode.question_field) ? &kCode : &kNumbers;
  std::vector<Question> questions;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto text = lines[i].find(kind->question_field);
    const auto solution = lines[i].find(kind->solution_field);
    const bool complete = text != lines[i].end() && solution != lines[i].end() &&
                          (kind->code || final_number(solution->second));
    if (!complete) {
      return invalid_argument(task.file.string() + ": question " + std::to_string(i + 1) +
                              " has not the fields of GSM8K (\"question\", \"answer\" with a "
                              "number) or HumanEval (\"prompt\", \"canonical_solution\")");
    }
    questions.push_back({text->second, solution->second});
  }
  return questions;
}

std::string shown(const Question& question, const Kind& kind) {
  std::string text(kind.before);
  text += question.text;
  text += kind.between;
  return text;
}

// Whether an answer needs no further token.
bool is_complete(std::string_view text, bool code) {
  if (code) return function_body(text).size() < text.size();
  const std::size_t mark = text.find("####");
  return text.find("\nQuestion:") != std::string_view::npos ||
         (mark != std::string_view::npos && text.find('\n', mark) != std::string_view::npos);
}

struct Mark {
  double correct = 0;     // numbers: the right one; code: equal to the solution
  double first_line = 0;  // code
  double edit = 0;        // code
  double same = 0;        // as bf16
};

Mark mark_answer(std::string_view answer, const Question& question, bool code) {
  if (!code) {
    const std::string_view own = answer.substr(0, answer.find("\nQuestion:"));
    const auto number = final_number(own);
    return {.correct = number && number == final_number(question.solution) ? 1.0 : 0.0};
  }
  const std::string body = trimmed(function_body(answer));
  const std::string solution = trimmed(question.solution);
  return {.correct = body == solution ? 1.0 : 0.0,
          .first_line = first_line(body) == first_line(solution) ? 1.0 : 0.0,
          .edit = edit_similarity(body, solution)};
}

void report_marks(const std::string& name, const std::string& format,
                  const std::vector<Mark>& marks, bool code, EvalRun& run) {
  const int count = static_cast<int>(marks.size());
  const auto sum = [&](double Mark::*member, std::span<const int> weights) {
    double total = 0;
    for (int i = 0; i < count; ++i) total += weights[i] * marks[i].*member;
    return total;
  };
  const std::vector<int> once(marks.size(), 1);
  const auto add = [&](const char* metric, const Interval& value, const char* unit) {
    run.report.measures.push_back({name, format, metric, value, unit});
  };
  const auto share = [&](const char* metric, double Mark::*member) {
    add(metric, wilson_interval(static_cast<int>(sum(member, once)), count), "share");
  };
  share(code ? "exact" : "correct", &Mark::correct);
  if (code) {
    share("first_line", &Mark::first_line);
    add("edit_similarity",
        bootstrap(
            count, [&](std::span<const int> weights) { return sum(&Mark::edit, weights) / count; },
            run.seed),
        "0 to 1");
  }
  share("same_as_bf16", &Mark::same);
}

class ExactMatchRun {
 public:
  ExactMatchRun(const ExactMatchTask& task, EvalRun& run)
      : task_(task), run_(run), name_(task.file.filename().string()), marks_(run.formats.size()) {}

  Status ask_all() {
    KVLANE_ASSIGN(const std::vector<Question> questions, read_questions(task_, kind_, digest_));
    if (static_cast<int>(questions.size()) <= task_.shots) {
      return invalid_argument(task_.file.string() + " has " + std::to_string(questions.size()) +
                              " lines: nothing is left to ask after " +
                              std::to_string(task_.shots) + " examples");
    }
    for (int i = 0; i < task_.shots; ++i) {
      examples_ += shown(questions[i], *kind_) + questions[i].solution + std::string(kind_->after);
    }
    KVLANE_ASSIGN(runners_, make_runners(run_, run_.model->context()));
    const int end =
        std::min<int>(static_cast<int>(questions.size()), task_.shots + task_.questions);
    for (int i = task_.shots; i < end; ++i) {
      KVLANE_TRY(ask(i, questions[i]));
      if (run_.progress) run_.progress(name_, i + 1 - task_.shots, end - task_.shots);
    }
    if (too_long_ > 0) {
      run_.report.not_measured.push_back(
          name_ + ": " + std::to_string(too_long_) + " of " + std::to_string(end - task_.shots) +
          " questions with their examples do not fit into the context");
    }
    return {};
  }

  void report() {
    for (std::size_t format = 0; format < run_.formats.size() && !marks_[0].empty(); ++format) {
      report_marks(name_, run_.formats[format].name(), marks_[format], kind_->code, run_);
    }
  }

 private:
  Status ask(int index, const Question& question) {
    std::string text = examples_ + shown(question, *kind_);
    // A blank at the end would begin the answer's first token.
    if (text.ends_with(' ')) text.pop_back();
    KVLANE_ASSIGN(const std::vector<std::int32_t> prompt, task_.tokenizer->encode(text));
    if (prompt.size() + task_.new_tokens > static_cast<std::size_t>(run_.model->context())) {
      ++too_long_;
      return {};
    }
    std::string reference;
    for (std::size_t format = 0; format < runners_.size(); ++format) {
      KVLANE_ASSIGN(const std::string answer, answer_of(runners_[format], index, prompt));
      if (format == 0) reference = answer;
      Mark mark = mark_answer(answer, question, kind_->code);
      mark.same = answer == reference ? 1 : 0;
      marks_[format].push_back(mark);
    }
    return {};
  }

  Result<std::string> answer_of(FormatRunner& runner, int index,
                                std::span<const std::int32_t> prompt) {
    const auto generate = [&]() -> Result<std::vector<double>> {
      TokenStream stream(*task_.tokenizer);
      std::string text;
      const auto enough = [&](std::int32_t token) {
        text += stream.push(token);
        return is_complete(text, kind_->code);
      };
      KVLANE_ASSIGN(
          const std::vector<std::int32_t> answer,
          greedy_answer(runner, prompt, {task_.new_tokens, run_.model->config().eos, enough}));
      return std::vector<double>(answer.begin(), answer.end());
    };
    const std::string key = name_ + "|" + runner.name() + "|" + digest_ + "|" +
                            std::to_string(task_.shots) + "|" + std::to_string(task_.new_tokens) +
                            "|" + std::to_string(index);
    KVLANE_ASSIGN(const std::vector<double> kept, run_.log.find_or_add(key, generate));
    return task_.tokenizer->decode(std::vector<std::int32_t>(kept.begin(), kept.end()));
  }

  const ExactMatchTask& task_;
  EvalRun& run_;
  const std::string name_;
  const Kind* kind_ = nullptr;
  std::string digest_;  // of the file
  std::string examples_;
  std::vector<FormatRunner> runners_;
  std::vector<std::vector<Mark>> marks_;  // [format][question]
  int too_long_ = 0;
};

}  // namespace

std::optional<std::string> final_number(std::string_view text) {
  const std::size_t mark = text.find("####");
  const auto numbers = numbers_of(mark == std::string_view::npos ? text : text.substr(mark));
  if (numbers.empty()) return std::nullopt;
  return mark == std::string_view::npos ? numbers.back() : numbers.front();
}

std::string_view function_body(std::string_view text) {
  for (std::size_t at = text.find('\n'); at != std::string_view::npos;
       at = text.find('\n', at + 1)) {
    const std::size_t next = at + 1;
    if (next < text.size() &&
        std::string_view(" \t\r\n").find(text[next]) == std::string_view::npos) {
      return text.substr(0, at);
    }
  }
  return text;
}

Status run_exact_match_task(const ExactMatchTask& task, EvalRun& run) {
  if (task.shots < 0 || task.questions < 1 || task.new_tokens < 1) {
    return invalid_argument("exact match needs at least one question and one new token");
  }
  ExactMatchRun exact(task, run);
  KVLANE_TRY(exact.ask_all());
  exact.report();
  return {};
}

}  // namespace kvlane
